# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from floatwise.formats import FORMATS
from floatwise.planner.decision import LossParity, LossScaleChoice, RoleRow
from floatwise.report import svg
from floatwise.report.charts import Bar, bars_chart, loss_chart
from floatwise.report.range_chart import range_chart
from floatwise.report.scale_chart import loss_scale_chart
from floatwise.report.svg import WIDTH, Axis

_PLACE = re.compile(r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height)="([^"]*)"')
_VIEW = re.compile(r'viewBox="0 0 (\d+) (\d+)"')


def _assert_drawn_inside(chart: Markup) -> None:
    view = _VIEW.search(chart)
    assert view is not None
    most = max(int(side) for side in view.groups())
    places = [float(place) for place in _PLACE.findall(chart)]
    places += [float(p) for line in re.findall(r'points="([^"]*)"', chart) for p in re.split("[ ,]", line)]
    assert all(0 <= place <= most for place in places)


_LOSSES = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=40)


@given(_LOSSES, _LOSSES, st.none() | st.tuples(st.floats(-10, 10), st.floats(10, 20)))
def test_loss_chart_draws_anything(
    planned: list[float], float32: list[float], spread: tuple[float, float] | None
) -> None:
    parity = spread and LossParity(True, 1.0, (1.0,), spread)
    chart = loss_chart({"planned": planned, "float32": float32}, parity)
    _assert_drawn_inside(chart)
    crosses = sum(not math.isfinite(loss) for loss in [*planned, *float32])
    assert chart.count(">×<") == crosses
    assert chart.count('class="band"') == (spread is not None)


def test_long_curves_are_thinned_but_keep_what_is_not_finite() -> None:
    losses = [3.0 - step * 1e-5 for step in range(100_000)]
    losses[54_321] = math.nan
    chart = loss_chart({"planned": losses, "float32": ()}, None)
    assert len(chart) < 20_000
    assert chart.count(">×<") == 1


def test_curves_that_fall_far_get_a_logarithmic_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    assert "logarithmic" in loss_chart({"planned": (9.0, 1.0), "float32": ()}, None)
    assert "logarithmic" not in loss_chart({"planned": (3.0, 2.0), "float32": ()}, None)
    assert "logarithmic" not in loss_chart({"planned": (9.0, -1.0), "float32": ()}, None)


def test_bars_have_their_unit_and_their_words() -> None:
    bars = [Bar("float32", 0.08, "80 ms", "float32"), Bar("<b>", 0.04, "40 ms", "planned")]
    chart = bars_chart("time", "Step time", "ms", 1e-3, bars)
    _assert_drawn_inside(chart)
    assert ">ms<" in chart
    assert ">80 ms<" in chart
    assert "&lt;b&gt;" in chart
    _assert_drawn_inside(bars_chart("none", "Nothing", "ms", 1e-3, [Bar("a", 0.0, "0 s", "planned")]))


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("window", "initial"),
    [
        ((6, 23), 8192.0),
        ((16, 24), 65536.0),
        ((-30, 100), 1.0),
        ((12, 12), 4096.0),
        ((20, 10), 32768.0),
        ((0, 3), 3.0),
    ],
)
def test_loss_scale_chart(window: tuple[int, int], initial: float) -> None:
    chart = loss_scale_chart(LossScaleChoice(window, initial, "head"))
    _assert_drawn_inside(chart)
    assert chart.count('class="zone good"') == (window[0] < window[1])
    assert chart.count('class="mark reference"') == (initial != 65536.0)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("names", [["float16", "bfloat16"], ["bfloat16"], ["float8_e4m3fn", "float8_e5m2"], []])
@pytest.mark.parametrize("amax", [0.0, 1e-30, 3.0, 1e38, math.inf])
def test_range_chart(names: list[str], amax: float) -> None:
    rows = [RoleRow("output", name, amax, "head", 0.0, 0.0, None) for name in names or ["float16"]]
    chart = range_chart(rows, [FORMATS[name] for name in names])
    _assert_drawn_inside(chart)
    assert chart.count("<circle") == (amax > 0)
    assert all(name in chart for name in names)


def test_elements_are_escaped() -> None:
    assert svg.element("text", "<&", class_="a", text_anchor='"') == (
        '<text class="a" text-anchor="&#34;">&lt;&amp;</text>'
    )
    assert svg.element("g", svg.element("path", d="M0")) == '<g><path d="M0"></path></g>'


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_ticks_are_few_and_inside(low: float, span: float) -> None:
    high = low + span
    ticks = svg.linear_ticks(low, high)
    assert len(ticks) <= 7
    assert all(low - 1e-6 * abs(low) - span * 1e-6 <= tick <= high + 1e-6 * abs(high) + span * 1e-6 for tick in ticks)


def test_axes_keep_within_their_ends() -> None:
    axis = Axis(1, 100, 0.0, 200.0, log=True)
    assert [axis.at(value) for value in (0.1, 1, 10, 100, 1000)] == [0.0, 0.0, 100.0, 200.0, 200.0]
    assert Axis(5, 5, 0, WIDTH).at(5) == WIDTH / 2
    assert svg.log_ticks(0.9, 25) == [1, 2, 5, 10, 20]
    assert svg.log_ticks(0.9, 2500) == [1, 10, 100, 1000]
