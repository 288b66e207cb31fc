# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.report.samples import recording, rehearsal

from floatwise.planner.decision import Decision, LossScaleChoice, Verdict
from floatwise.planner.window import underflow_at
from floatwise.report.figures import loss_scale_figure
from floatwise.report.loss_scale import ShownScale, scale_curve, shown_scale
from floatwise.report.panels import exponent_panels, scale_panel

Decide = Callable[..., Decision]
SCALE = LossScaleChoice((6, 23), 2.0**13, "layers.0")


def _shown(scale: LossScaleChoice = SCALE) -> ShownScale:
    return ShownScale("fp16-mixed", scale, ())


def _layout(scale: LossScaleChoice) -> dict[str, Any]:
    curve = scale_curve(recording(), _shown(scale))
    assert curve is not None
    layout: dict[str, Any] = loss_scale_figure(curve, scale).to_plotly_json()["layout"]
    return layout


def test_curve_is_the_planners_own() -> None:
    values = recording()
    curve = scale_curve(values, _shown())
    assert curve is not None
    gradients = values.role("grad_output").values()
    assert curve.flushed[curve.scales_log2.index(-4)] == underflow_at(gradients, -4) > 0.2
    assert curve.flushed[curve.scales_log2.index(13)] == 0
    assert scale_curve(recording(summaries={}), _shown()) is None


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("window", [(6, 23), (16, 24), (-30, 100), (20, 10)])
def test_window_and_what_lies_above_it_are_shaded(window: tuple[int, int]) -> None:
    layout = _layout(LossScaleChoice(window, 2.0 ** window[0], "layers.0"))
    shades = {shape["fillcolor"]: (shape["x0"], shape["x1"]) for shape in layout["shapes"] if shape["type"] == "rect"}
    assert shades.get("var(--window)", window) == window
    assert ("var(--window)" in shades) == (window[0] < window[1])
    assert shades["var(--over-soft)"][0] == window[1]


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("initial", "marks"), [(2.0**13, {13.0, 16}), (65536.0, {16.0}), (3.0, {1.584962500721156, 16})]
)
def test_first_scale_and_pytorchs_are_marked(initial: float, marks: set[float]) -> None:
    layout = _layout(LossScaleChoice((6, 23), initial, "layers.0"))
    assert {shape["x0"] for shape in layout["shapes"] if shape["type"] == "line"} == marks
    assert len(layout["annotations"]) == len(marks)


def test_the_plans_own_scale_comes_before_those_of_other_recipes(decide: Decide) -> None:
    other = LossScaleChoice((1, 2), 2.0, "x")
    plain = Verdict("fp16-master", "accepted", (), loss_scale=LossScaleChoice((3, 4), 8.0, "y"))
    rehearsed = Verdict("fp16-mixed", "accepted", (), loss_scale=other, rehearsal=rehearsal())
    bare = decide(verdicts=(plain, rehearsed))
    scaled = decide(recipe="fp16-mixed", loss_scale=SCALE, verdicts=())
    assert shown_scale([bare, scaled], recording()) == ShownScale("fp16-mixed", SCALE, scaled.islands)
    assert shown_scale([bare], recording()) == ShownScale("fp16-mixed", other, ())


@pytest.mark.usefixtures("language")
def test_without_a_loss_scale_the_histogram_shows_what_float16_would_need(decide: Decide) -> None:
    decision = decide(verdicts=())
    shown = shown_scale([decision], recording())
    assert shown is not None
    assert shown.recipe == ""
    assert shown.choice.window_log2[0] <= 13 <= shown.choice.window_log2[1]
    assert scale_panel([decision], recording()) is None
    shapes = exponent_panels([decision], recording())[0].drawing.figure.layout.shapes
    assert any(shape.type == "rect" for shape in shapes)
    assert shown_scale([decision], recording(summaries={})) is None


@pytest.mark.usefixtures("language")
def test_panel_says_the_window_in_words_and_numbers(decide: Decide) -> None:
    panel = scale_panel([decide(recipe="fp16-mixed", loss_scale=SCALE)], recording())
    assert panel is not None
    assert all(word in panel.note for word in ("fp16-mixed", "2^6", "2^23", "2^13"))
    assert ("2^13", "0 %") in panel.tables[0].rows
