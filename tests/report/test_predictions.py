# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.report.samples import MIB, memory, predicted

from floatwise.planner.decision import Decision, Predicted, Verdict
from floatwise.report import numbers
from floatwise.report.figures import memory_figure, speed_figure
from floatwise.report.memory_bars import memory_bars
from floatwise.report.panels import memory_panel, speed_panel
from floatwise.report.predictions import (
    fits_word,
    prediction_notes,
    prediction_rows,
    quoted_memory,
    quoted_speed,
)
from floatwise.report.speed_rows import speed_rows

Decide = Callable[..., Decision]


def _verdicts(prediction: Predicted | None = None) -> tuple[Verdict, ...]:
    seen = prediction or predicted()
    flat = replace(seen, memory=seen.float32_memory)
    return (
        Verdict("bf16-mixed", "chosen", (), predicted=seen),
        Verdict("fp32", "accepted", (), predicted=flat),
        Verdict("fp16-mixed", "refused", ()),
    )


def test_memory_of_each_recipe_stands_once(decide: Decide) -> None:
    decisions = [decide(verdicts=_verdicts(), measured=None, here=False), decide(verdicts=_verdicts())]
    bars = memory_bars(decisions)
    assert [(bar.name, bar.memory.peak_bytes) for bar in bars] == [("float32", 70 * MIB), ("bf16-mixed", 60 * MIB)]
    assert [bar.measured_bytes for bar in bars] == [10_960_000_000, 6_820_000_000]


def test_targets_with_other_islands_have_bars_of_their_own(decide: Decide) -> None:
    other = replace(predicted(), memory=memory(weights=99))
    decisions = [decide(verdicts=_verdicts(prediction)) for prediction in (predicted(), other)]
    assert [bar.name for bar in memory_bars(decisions)] == ["float32", "bf16-mixed", "bf16-mixed (2)"]


def test_bars_are_stacked_by_kind_up_to_the_peak(decide: Decide) -> None:
    bars = memory_bars([decide(verdicts=_verdicts(), measured=None)])
    figure = memory_figure(bars).to_plotly_json()
    stacks = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert [trace["marker"]["color"] for trace in stacks] == [f"var(--kind-{n})" for n in (1, 3, 4, 5, 6)]
    sums = [sum(trace["x"][row] for trace in stacks) for row in range(2)]
    assert sums == [70.0, 60.0]  # MiB
    assert figure["layout"]["barmode"] == "stack"
    texts = next(trace["text"] for trace in figure["data"] if trace.get("mode") == "text")
    assert [text.strip() for text in texts] == ["70.0 MiB", "60.0 MiB"]


def test_measured_peaks_are_diamonds(decide: Decide) -> None:
    figure = memory_figure(memory_bars([decide(verdicts=_verdicts())])).to_plotly_json()
    [diamonds] = [trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == "diamond"]
    assert diamonds["y"] == [0, 1]
    assert diamonds["x"][0] == pytest.approx(10_960_000_000 / 2**30)


def test_one_target_shows_its_recipes_and_several_show_their_choice(decide: Decide) -> None:
    one = decide(verdicts=_verdicts(), measured=None, here=False)
    assert [(row.target, row.recipe) for row in speed_rows([one])] == [("", "bf16-mixed")]
    two = speed_rows([replace(one, target_name="A"), replace(one, target_name="B", recipe="fp32")])
    assert [(row.name, row.predicted) for row in two] == [("A · bf16-mixed", (1.2, 2.5, 4.1))]


def test_speed_is_predicted_and_measured_side_by_side(decide: Decide) -> None:
    [row] = speed_rows([decide(verdicts=_verdicts())])
    assert row.predicted == (1.2, 2.5, 4.1)
    assert row.measured == (2.24, 2.31, 2.38)
    dot, diamond = speed_figure([row]).to_plotly_json()["data"]
    assert (dot["marker"]["symbol"], diamond["marker"]["symbol"]) == ("circle", "diamond")
    assert dot["error_x"]["array"] == [pytest.approx(1.6)]
    assert dot["error_x"]["arrayminus"] == [pytest.approx(1.3)]
    assert dot["y"][0] < 0 < diamond["y"][0]


@pytest.mark.parametrize("ratio", [math.nan, math.inf, 0.0])
def test_speeds_that_are_no_number_are_not_drawn(decide: Decide, ratio: float) -> None:
    measured = decide().measured
    assert measured is not None
    broken = decide(verdicts=_verdicts(), measured=replace(measured, speed_ratio=ratio, speed_spread=(ratio, ratio)))
    low, high = speed_figure(speed_rows([broken])).layout.xaxis.range
    assert low < 0 < high


def test_nothing_predicted_gives_no_panels(decide: Decide) -> None:
    assert memory_panel([decide(measured=None)]) is None
    assert speed_panel([decide(measured=None)]) is None
    assert prediction_notes([decide(measured=None)]) == []


@pytest.mark.usefixtures("language")
def test_words_say_whether_they_are_measured(decide: Decide, language: str) -> None:
    there, here = decide(verdicts=_verdicts(), measured=None, here=False), decide(verdicts=_verdicts())
    said = {"en": ("predicted", "measured"), "zh": ("预测", "实测")}[language]
    for decision, word in zip((there, here), said, strict=True):
        verdict = decision.verdicts[0]
        for quoted in (quoted_speed(decision, verdict), quoted_memory(decision, verdict)):
            assert quoted is not None
            assert quoted.source == word
            assert str(quoted).endswith(word)
    assert str(quoted_speed(there, there.verdicts[0])).startswith("2.5×")
    assert str(quoted_memory(there, there.verdicts[0])).startswith("60.0 MiB")


@pytest.mark.usefixtures("language")
def test_what_is_not_known_is_not_quoted(decide: Decide) -> None:
    decision = decide(measured=None)
    verdict = decision.verdicts[0]
    assert quoted_speed(decision, verdict) is None
    assert quoted_memory(decision, verdict) is None
    assert fits_word(verdict) == numbers.MISSING


@pytest.mark.usefixtures("language")
def test_notes_state_the_known_error(decide: Decide) -> None:
    notes = prediction_notes([decide(verdicts=_verdicts())])
    assert any("70 %" in note for note in notes)
    assert any("10 %" in note for note in notes)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("changes", "rows"), [({}, 2), ({"speed": None}, 1), ({"fits": None}, 2), ({"fits": False}, 2)]
)
def test_rows_of_a_prediction(changes: dict[str, Any], rows: int) -> None:
    found = prediction_rows(predicted(**changes))
    assert len(found) == rows
    assert found[-1].planned == "60.0 MiB"


@pytest.mark.usefixtures("language")
def test_tables_hold_what_the_figures_show(decide: Decide) -> None:
    decision = decide(verdicts=_verdicts())
    memory_of, speed_of = memory_panel([decision]), speed_panel([decision])
    assert memory_of is not None
    assert speed_of is not None
    for panel in (memory_of, speed_of):
        [table] = panel.tables
        assert {len(row) for row in table.rows} == {len(table.headers)}
    assert "60.0 MiB" in memory_of.tables[0].rows[1]
    assert speed_of.tables[0].rows[0][1:] == ("2.5×", "1.20–4.1×", "2.3×", "2.2–2.4×")
