# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import plotly.graph_objects as go
import pytest

from floatwise.report.drawing import Drawing, drawings_json
from floatwise.report.figures import style


def _drawing(**trace: object) -> Drawing:
    figure = style.blank(100)
    figure.add_trace(go.Scatter(**trace))
    return Drawing("one", figure, "A line.")


def test_json_is_strict() -> None:
    text = drawings_json([_drawing(x=[1, math.nan, 3], y=[math.inf, -math.inf, 2])])
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    trace = read["one"]["data"][0]
    assert (trace["x"], trace["y"]) == ([1, None, 3], [None, None, 2])


def test_json_cannot_leave_its_element() -> None:
    text = drawings_json([_drawing(name="</script><!--&\u2028")])
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text)["one"]["data"][0]["name"] == "</script><!--&\u2028"


def test_figures_carry_no_template_of_plotlys() -> None:
    assert len(drawings_json([_drawing(x=[1], y=[1])])) < 1000


def test_axes_do_not_catch_a_finger() -> None:
    assert style.axis()["fixedrange"]
    assert style.blank(10).layout.dragmode is False


def test_names_make_room_and_have_a_short_form_for_phones() -> None:
    figure = style.blank(100)
    axis = style.names_axis(figure, "yaxis", ["transformer.h.11.mlp.c_proj", "a"])
    assert axis["ticktext"] == ["transformer.h.11.mlp.c_proj", "a"]
    changes = figure.layout.meta["narrow"]
    assert changes["yaxis.ticktext"] == ["transf…mlp.c_proj", "a"]
    assert 100 < changes["margin.l"] < figure.layout.margin.l < 260


def test_colours_repeat_after_the_last() -> None:
    colours = style.series_colours([f"recipe-{index}" for index in range(8)])
    assert colours["recipe-0"] == colours["recipe-6"] != colours["recipe-1"]
