# SPDX-License-Identifier: Apache-2.0
"""How the values of one role are spread over powers of two, under the ranges of the formats that could hold them.

The field's own picture: Micikevicius et al. 2018 (arXiv:1710.03740), figure 3, with a row for every module below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from floatwise.formats import get_format
from floatwise.language import Text
from floatwise.planner.decision import LossScaleChoice
from floatwise.report import numbers
from floatwise.report.exponents import GRADIENT_ROLES, RoleExponents, fate
from floatwise.report.figures import style
from floatwise.report.figures.ranges import Lane, add_ends, add_lanes, lanes_for
from floatwise.report.figures.text import power, raised

__all__ = ["FATES", "LEAST_SHARE", "exponents_figure"]

#: Colour and name of what float16 does to a value.
FATES: Mapping[str, tuple[str, Text]] = {
    "normal": ("var(--held)", Text("held in full", "完整保留")),
    "subnormal": ("var(--subnormal)", Text("held with fewer digits", "保留但有效位数减少")),
    "zero": ("var(--lost)", Text("become zero", "变为零")),
    "overflow": ("var(--over)", Text("overflow", "上溢")),
    "already": ("var(--bar)", Text("zero in float32, too", "在 float32 中已为零")),
    "nonfinite": ("var(--over)", Text("not finite in float32, either", "在 float32 中已非有限值")),
}
#: The least share that has a colour: one value of a hundred thousand, about what a sampled tensor can show.
LEAST_SHARE = 1e-5

_LANE_PX, _BARS_PX, _ROW_PX, _LEAST_CELLS_PX = 24, 170, 17, 34
_GAP_PX, _TICKS_PX, _TITLE_PX = 10, 24, 22
_SHARES = (1.0, 1e-2, 1e-4)
# Columns between the powers of two and the columns of zeros and of what is not finite.
_APART = 2

_BAR_HOVER = Text("{share} of all values<br>from {low} to {high}", "占全部数值的 {share}<br>{low} 至 {high}")
_AXIS = Text("magnitude", "数值大小")
_WINDOW = Text("loss-scale window", "损失缩放窗口")


@dataclass(frozen=True)
class _Frame:
    """Where things stand: exponents on the horizontal axis, pixels from the top of its inside on the other.

    Attributes:
      low: Lowest exponent on the axis.
      high: Highest.
      lanes: How many, the window among them.
      rows: How many.
    """

    low: int
    high: int
    lanes: int
    rows: int

    @property
    def zero(self) -> int:
        """Place of the zeros."""
        return self.low - 1 - _APART

    @property
    def nonfinite(self) -> int:
        """Place of infinities and NaN."""
        return self.high + 1 + _APART

    @property
    def bars_top(self) -> int:
        return self.lanes * _LANE_PX + _GAP_PX

    @property
    def cells_top(self) -> int:
        return self.bars_top + _BARS_PX + _TICKS_PX + _GAP_PX

    @property
    def bottom(self) -> int:
        return self.cells_top + max(_LEAST_CELLS_PX, _ROW_PX * self.rows)

    def paper(self, pixels: float) -> float:
        """Returns a height as Plotly counts it: 0 at the bottom, 1 at the top."""
        return 1 - pixels / self.bottom


def exponents_figure(values: RoleExponents, scale: LossScaleChoice | None) -> go.Figure:
    """Returns the figure: ranges of the formats, the whole role as bars, and a row of colours for each module.

    Args:
      values: The role's values.
      scale: For gradients, the loss scale whose effect is shown, and its window.
    """
    choice = scale if values.role in GRADIENT_ROLES else None
    lanes = lanes_for(choice)
    frame = _frame(values, lanes, choice is not None)
    figure = style.blank(frame.bottom + _TICKS_PX + _TITLE_PX, t=0, b=_TICKS_PX + _TITLE_PX)
    figure.layout.barmode = "overlay"
    _add_axes(figure, values, frame, [*(lane.name for lane in lanes), *([str(_WINDOW)] if choice else [])])
    add_lanes(figure, lanes, choice, (frame.low - 1.5, frame.high + 1.5))
    _add_bars(figure, values, frame, lanes[-1].shift)
    _add_cells(figure, values, frame)
    spans = [
        (frame.paper(frame.bars_top + _BARS_PX), frame.paper(frame.bars_top)),
        (frame.paper(frame.bottom), frame.paper(frame.cells_top)),
    ]
    bottoms = [frame.paper((index + 0.75) * _LANE_PX) for index in range(frame.lanes)]
    add_ends(figure, lanes, choice, spans, bottoms)
    return figure


def _frame(values: RoleExponents, lanes: Sequence[Lane], has_window: bool) -> _Frame:
    """Fits all values and the ranges of float16; bfloat16's reaches past both sides."""
    ends = [end for lane in lanes if lane.format.name == "float16" for end in lane.ends]
    low, high = min(values.low, math.floor(min(ends))), max(values.high, math.ceil(max(ends)))
    return _Frame(low, high, len(lanes) + has_window, len(values.rows))


def _add_axes(figure: go.Figure, values: RoleExponents, frame: _Frame, lane_names: Sequence[str]) -> None:
    has_nonfinite = values.whole.spread.nonfinite > 0
    ends = [frame.zero - 1, frame.nonfinite + 1 if has_nonfinite else frame.high + 1]
    steps = (4, 8) if frame.high - frame.low <= 44 else (8, 16)
    wide, small = (_ticks(frame, step, has_nonfinite) for step in steps)
    layout = figure.layout
    fixed: dict[str, Any] = {"range": ends, "ticks": "outside", "ticklen": 4}
    layout.xaxis = style.tick_axis(*wide, anchor="y2", **fixed)
    layout.xaxis2 = style.tick_axis(*wide, anchor="y3", title={"text": str(_AXIS), "standoff": 4}, **fixed)
    for axis in ("xaxis", "xaxis2"):
        style.narrow(figure, {f"{axis}.tickvals": small[0], f"{axis}.ticktext": small[1]})
    domain = [frame.paper(frame.bars_top - _GAP_PX), 1.0]
    layout.yaxis = style.names_axis(figure, "yaxis", lane_names, domain=domain)
    layout.yaxis.ticktext = [raised(words) for words in layout.yaxis.ticktext]
    style.narrow(figure, {"yaxis.ticktext": list(map(raised, layout.meta["narrow"]["yaxis.ticktext"]))})
    layout.yaxis2 = style.tick_axis(
        _SHARES,
        [f"{100 * share:g} %" for share in _SHARES],
        type="log",
        range=[math.log10(LEAST_SHARE), math.log10(1.3)],
        domain=[frame.paper(frame.bars_top + _BARS_PX), frame.paper(frame.bars_top)],
        showgrid=True,
    )
    domain = [0.0, frame.paper(frame.cells_top)]
    layout.yaxis3 = style.names_axis(figure, "yaxis3", [row.name for row in values.rows], domain=domain)


def _ticks(frame: _Frame, step: int, has_nonfinite: bool) -> tuple[list[float], list[str]]:
    """Returns places and words: zeros, the powers of two that are multiples of `step`, and what is not finite."""
    exponents = range(math.ceil(frame.low / step) * step, frame.high + 2, step)
    places = [float(frame.zero), *(exponent - 0.5 for exponent in exponents)]
    words = ["0", *map(power, exponents)]
    return ([*places, float(frame.nonfinite)], [*words, "∞"]) if has_nonfinite else (places, words)


def _add_bars(figure: go.Figure, values: RoleExponents, frame: _Frame, shift: int) -> None:
    spread, fmt = values.whole.spread, get_format("float16")
    columns: dict[str, list[tuple[int, float, str]]] = {}
    for exponent, share in enumerate(spread.by_exponent, start=values.low):
        if share:
            words = _BAR_HOVER.format(share=numbers.percent(share), low=power(exponent), high=power(exponent + 1))
            columns.setdefault(fate(fmt, exponent, shift), []).append((exponent, share, words))
    for name, place, share in (("already", frame.zero, spread.zero), ("nonfinite", frame.nonfinite, spread.nonfinite)):
        if share:
            columns[name] = [(place, share, f"{FATES[name][1]}<br>{numbers.percent(share)}")]
    for name, found in columns.items():
        colour, called = FATES[name]
        places, shares, hovers = zip(*found, strict=True)
        figure.add_trace(
            go.Bar(
                x=places,
                y=shares,
                width=1.0,
                name=str(called),
                marker={"color": colour, "line": {"width": 0.5, "color": "var(--paper)"}},
                hovertext=hovers,
                hovertemplate="%{hovertext}<extra></extra>",
                xaxis="x",
                yaxis="y2",
            )
        )


def _add_cells(figure: go.Figure, values: RoleExponents, frame: _Frame) -> None:
    spreads = [row.spread for row in values.rows]
    exponents = range(values.low, values.high + 1)
    blocks: list[tuple[Sequence[int], list[Sequence[float]], str]] = [
        ([frame.zero], [[spread.zero] for spread in spreads], str(FATES["already"][1])),
        (exponents, [spread.by_exponent for spread in spreads], "2<sup>%{x}</sup>"),
    ]
    if values.whole.spread.nonfinite:
        nonfinite: list[Sequence[float]] = [[spread.nonfinite] for spread in spreads]
        blocks.append(([frame.nonfinite], nonfinite, str(FATES["nonfinite"][1])))
    for places, shares, words in blocks:
        figure.add_trace(_cells(places, shares, words))


def _cells(places: Sequence[int], shares: Sequence[Sequence[float]], words: str) -> go.Heatmap:
    return go.Heatmap(
        x=list(places),
        y=list(range(len(shares))),
        z=[[_colour(share) for share in line] for line in shares],
        customdata=[[float(f"{share:.3g}") for share in line] for line in shares],
        zmin=math.log10(LEAST_SHARE),
        zmax=0.0,
        colorscale=list(style.HEAT),
        showscale=False,
        hovertemplate=f"%{{y}}<br>{words}: %{{customdata:.3~p}}<extra></extra>",
        hoverongaps=False,
        ygap=1,
        xaxis="x2",
        yaxis="y3",
    )


def _colour(share: float) -> float | None:
    return round(math.log10(max(share, LEAST_SHARE)), 2) if share else None
