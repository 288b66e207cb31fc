# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import pytest
from tests.report.samples import comparison, gradient, rehearsal, rehearsal_with_island

from floatwise.report.figures import gradients_figure
from floatwise.report.figures.gradients import MOST_PARAMETERS
from floatwise.report.gradients import GradientPoint, worst_first
from floatwise.report.panels import gradient_panels
from floatwise.report.tables import MOST_TABLE_ROWS


def _markers(points: list[GradientPoint]) -> dict[tuple[str, str], list[tuple[float, int]]]:
    """Returns places by symbol and colour."""
    found = {}
    for trace in gradients_figure(points).to_plotly_json()["data"]:
        marker: dict[str, Any] = trace["marker"]
        key = marker["symbol"], marker.get("color", marker.get("line", {}).get("color", ""))
        found[key] = list(zip(trace["x"], trace["y"], strict=True))
    return found


def test_the_furthest_under_what_is_required_comes_first() -> None:
    rows = (gradient("fine", 40.0), gradient("bad", 5.0), gradient("noise", 3.0, None), gradient("worst", -math.inf))
    assert [point.row.parameter for point in worst_first(comparison(gradients=rows))] == [
        "worst",
        "bad",
        "fine",
        "noise",
    ]


def test_a_gradient_that_float32_has_not_either_is_left_out() -> None:
    assert worst_first(comparison(gradients=(gradient("zero", None),))) == []


@pytest.mark.parametrize(
    ("row", "is_faulty"),
    [
        (gradient("a"), False),
        (gradient("a", 5.0), True),
        (gradient("a", 5.0, None), False),
        (gradient("a", zero_share=0.3), True),
        (gradient("a", stalled_share=0.9), True),
    ],
)
def test_what_is_a_fault(row: Any, is_faulty: bool) -> None:
    assert GradientPoint(row).is_faulty == is_faulty


def test_good_and_bad_gradients_have_their_colours_and_what_is_required() -> None:
    rows = (gradient("good", 30.0, 10.0), gradient("bad", 5.0, 10.0))
    markers = _markers(worst_first(comparison(gradients=rows)))
    assert markers["circle", "var(--accent)"] == [(30.0, 1)]
    assert markers["circle", "var(--bad)"] == [(5.0, 0)]
    assert markers["line-ns", "var(--ink)"] == [(10.0, 0), (10.0, 1)]


def test_what_is_not_finite_stands_apart() -> None:
    rows = (gradient("inf", -math.inf), gradient("exact", math.inf), gradient("good", 30.0))
    points = worst_first(comparison(gradients=rows))
    markers = _markers(points)
    low, high = gradients_figure(points).layout.xaxis.range
    [(place, _)] = markers["x", "var(--bad)"]
    assert low < place < 10
    assert 30 < max(place for place, _ in markers["circle", "var(--accent)"]) < high


def test_rings_show_what_islands_changed() -> None:
    found = rehearsal_with_island()
    markers = _markers(worst_first(found.last, found.first))
    assert [row for _, row in markers["circle-open", "var(--plain-line)"]] == [0, 2, 3]
    assert [row for _, row in markers["x-open", "var(--plain-line)"]] == [1]
    assert ("circle-open", "var(--plain-line)") not in _markers(worst_first(found.last, found.last))


def test_many_parameters_are_cut_to_the_worst() -> None:
    rows = tuple(gradient(f"layers.{index}.weight", 20.0 + index) for index in range(300))
    [panel] = gradient_panels({"bf16-mixed": rehearsal("bf16-mixed", last=comparison(gradients=rows))})
    figure = panel.drawing.figure.to_plotly_json()
    assert len(figure["layout"]["yaxis"]["ticktext"]) == MOST_PARAMETERS
    assert figure["layout"]["yaxis"]["ticktext"][0] == "layers.0.weight"
    assert len(panel.tables[0].rows) == MOST_TABLE_ROWS
    assert panel.tables[0].left_out == 100
    assert str(MOST_PARAMETERS) in panel.note


@pytest.mark.usefixtures("language")
def test_panels_by_recipe(language: str) -> None:
    panels = gradient_panels({"fp16-mixed": rehearsal_with_island(), "bf16-mixed": rehearsal("bf16-mixed")})
    assert [panel.label for panel in panels] == ["fp16-mixed", "bf16-mixed"]
    assert len({panel.drawing.name for panel in panels}) == 2
    first, second = (panel.tables[0] for panel in panels)
    assert len(first.headers) == len(second.headers) + 1
    row = next(row for row in first.rows if row[0] == "layers.1.weight")
    assert row[2] == {"en": "not finite", "zh": "非有限值"}[language]
    assert gradient_panels({"bf16-mixed": rehearsal(last=comparison(gradients=()))}) == []


def test_hover_text_is_harmless() -> None:
    rows = (gradient("<a href='javascript:alert(1)'>%{x}</a>\x1b"),)
    [trace] = [t for t in gradients_figure(worst_first(comparison(gradients=rows))).data if t.hovertext]
    assert trace.hovertext[0].startswith("&lt;a href='javascript:alert(1)'&gt;%{x}&lt;/a&gt;\\x1b<br>")
    assert trace.hovertemplate == "%{hovertext}<extra></extra>"
