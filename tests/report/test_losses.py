# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.samples import recording, rehearsal, rehearsal_with_island

from floatwise.planner.decision import Decision, Verdict
from floatwise.report.figures import losses_figure
from floatwise.report.losses import Curve, LossCurves, loss_curves
from floatwise.report.panels import loss_panel

Decide = Callable[..., Decision]
COLOURS = {"bf16-mixed": "var(--series-1)", "fp16-mixed": "var(--series-2)"}


def _figure(curves: LossCurves) -> dict[str, Any]:
    json: dict[str, Any] = losses_figure(curves, COLOURS).to_plotly_json()
    return json


def _curve(losses: tuple[float, ...], float32: tuple[float, ...] = (3.0, 2.0, 1.0), allowed: float = 0.5) -> Curve:
    return Curve("bf16-mixed", "rehearsed", losses, float32, allowed)


def test_every_run_is_a_curve(decide: Decide) -> None:
    verdicts = (
        Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed")),
        Verdict("fp16-mixed", "accepted", (), rehearsal=rehearsal_with_island()),
        Verdict("fp32", "accepted", ()),
    )
    curves = loss_curves([decide(verdicts=verdicts)], recording())
    assert curves is not None
    assert [(curve.recipe, curve.kind) for curve in curves.curves] == [
        ("bf16-mixed", "rehearsed"),
        ("fp16-mixed", "without_islands"),
        ("fp16-mixed", "rehearsed"),
        ("bf16-mixed", "measured"),
    ]
    assert curves.spread == (0.1,) * 8
    assert len(curves.float32) == 60


def test_targets_share_their_rehearsals(decide: Decide) -> None:
    verdicts = (Verdict("fp16-mixed", "chosen", (), rehearsal=rehearsal_with_island()),)
    decisions = [decide(verdicts=verdicts, measured=None, target=name) for name in ("nvidia-t4", "nvidia-v100")]
    curves = loss_curves(decisions, recording())
    assert curves is not None
    assert len(curves.curves) == 2


def test_without_rehearsals_the_recorded_losses_are_shown(decide: Decide) -> None:
    curves = loss_curves([decide(measured=None)], recording())
    assert curves == LossCurves(recording().losses, (), ())
    assert loss_panel([decide(measured=None)], recording(losses=())) is None
    assert len(_figure(LossCurves((2.0, 1.0), (), ()))["data"]) == 1


def test_differences_stand_below_with_what_is_allowed() -> None:
    json = _figure(LossCurves((3.0, 2.0, 1.0), (), (_curve((3.5, 2.0, 0.75)),)))
    below = [trace for trace in json["data"] if trace.get("yaxis") == "y2"]
    assert [list(trace["y"]) for trace in below] == [[0.5, 0.0, -0.25]]
    boxes = json["layout"]["shapes"]
    assert [(box["x0"], box["x1"], box["y0"], box["y1"]) for box in boxes] == [(1, 3, -0.5, 0.5)]


def test_one_distance_is_shaded_once() -> None:
    curves = (
        _curve((3.0, 2.0, 1.0)),
        replace(_curve((3.0, 2.1, 1.0)), kind="measured"),
        _curve((3.0, 2.0, 1.1), allowed=0.1),
    )
    assert len(_figure(LossCurves((3.0, 2.0, 1.0), (), curves))["layout"]["shapes"]) == 2


def test_float32_has_a_band_of_its_own_spread() -> None:
    upper, lower = _figure(LossCurves((3.0, 2.0), (0.5, 0.25), ()))["data"][:2]
    assert (upper["y"], lower["y"]) == ([3.5, 2.25], [2.5, 1.75])
    assert lower["fill"] == "tonexty"


def test_losses_that_are_not_finite_are_crosses_at_the_top() -> None:
    json = _figure(LossCurves((3.0, 2.0, math.inf), (), (_curve((3.0, math.nan, 1.0)),)))
    crosses = [trace for trace in json["data"] if trace.get("marker", {}).get("symbol") == "x"]
    assert [list(trace["x"]) for trace in crosses] == [[3], [2]]
    assert {trace.get("yaxis") for trace in crosses} == {"y3"}
    lines = [trace["y"] for trace in json["data"] if trace["mode"] != "markers"]
    assert lines[0][2] is None
    assert lines[1][1] is None


_LOSSES = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=30)


@given(_LOSSES, _LOSSES, st.lists(st.floats(0, 1e3), max_size=30))
def test_anything_can_be_drawn(planned: list[float], float32: list[float], spread: list[float]) -> None:
    curve = Curve("bf16-mixed", "measured", tuple(planned), tuple(float32), None)
    json = _figure(LossCurves(tuple(float32), tuple(spread), (curve,)))
    for axis in ("xaxis", "yaxis"):
        low, high = json["layout"][axis]["range"]
        assert math.isfinite(low)
        assert low < high


def test_long_curves_are_thinned_but_keep_what_is_not_finite() -> None:
    losses = [3.0 - step * 1e-5 for step in range(100_000)]
    losses[54_321] = math.nan
    data = _figure(LossCurves(tuple(losses), (), ()))["data"]
    assert len(data[0]["x"]) < 1000
    assert data[0]["x"][-1] == 100_000
    assert data[1]["x"] == [54_322]


@pytest.mark.parametrize(("losses", "is_logarithmic"), [((9.0, 1.0), True), ((3.0, 2.0), False), ((9.0, -1.0), False)])
def test_curves_that_fall_far_get_a_logarithmic_axis(losses: tuple[float, ...], is_logarithmic: bool) -> None:
    axis = _figure(LossCurves(losses, (), ()))["layout"]["yaxis"]
    assert (axis["type"] == "log") == is_logarithmic
    assert ("ticktext" in axis) == is_logarithmic


@pytest.mark.usefixtures("language")
def test_panel_says_all_in_words_and_numbers(decide: Decide) -> None:
    verdicts = (Verdict("fp16-mixed", "chosen", (), rehearsal=rehearsal_with_island()),)
    panel = loss_panel([decide(verdicts=verdicts, measured=None)], recording())
    assert panel is not None
    names = [key.name for key in panel.drawing.keys]
    assert names[0] == "float32"
    assert len(names) == 6  # two rehearsals, the spread, what is allowed, and the cross
    table = panel.tables[0]
    assert [row[0] for row in table.rows] == [str(step) for step in range(1, 9)]
    assert table.rows[2][2] == "NaN"
    assert len({len(row) for row in (table.headers, *table.rows)}) == 1
