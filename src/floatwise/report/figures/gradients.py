# SPDX-License-Identifier: Apache-2.0
"""Signal over noise of each parameter's gradient in a rehearsal, against the least that is no fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from floatwise.language import Text
from floatwise.rehearse.comparison_rows import GradientRow
from floatwise.report import numbers
from floatwise.report.figures import style
from floatwise.report.figures.text import label
from floatwise.report.gradients import GradientPoint
from floatwise.report.rehearsals import decibels

__all__ = ["MOST_PARAMETERS", "gradients_figure"]

#: Parameters in the figure, the worst; all of them are in the table (convention: about one screen).
MOST_PARAMETERS = 48

_ROW_PX, _FOOT_PX = 18, 46
# Beyond the finite ratios, in decibels, so that what is not finite stands apart.
_APART_DB = 8.0

_RATIO = Text("gradient's signal over noise", "梯度信噪比")
_HOVER = Text(
    "{name}<br>{ratio}, required: {required}<br>cosine {cosine}<br>zeros {zeros} (float32 {float32_zeros})"
    "<br>stalled updates {stalled} (float32 {float32_stalled})",
    "{name}<br>{ratio}，要求 {required}<br>余弦 {cosine}<br>零占 {zeros}（float32 {float32_zeros}）"
    "<br>停滞的更新 {stalled}（float32 {float32_stalled}）",
)
_BEFORE = Text("{name}<br>without islands: {ratio}", "{name}<br>无孤岛时：{ratio}")


def gradients_figure(points: Sequence[GradientPoint]) -> go.Figure:
    """Returns a row for each of the worst parameters: a dot, the required ratio, and a ring for it without islands."""
    shown = list(points[:MOST_PARAMETERS])
    figure = style.blank(_ROW_PX * max(1, len(shown)) + _FOOT_PX, t=4, b=_FOOT_PX - 4, r=16)
    low, high = _ends(shown)
    place = _placer(low, high)
    names = [point.row.parameter for point in shown]
    figure.layout.yaxis = style.names_axis(figure, "yaxis", names, showgrid=True)
    figure.layout.xaxis = style.axis(
        range=_range(shown, low, high),
        nticks=8,
        ticksuffix=" dB",
        showline=True,
        ticks="outside",
        ticklen=4,
        title={"text": str(_RATIO), "standoff": 4},
    )
    style.narrow(figure, {"xaxis.nticks": 5})
    for index, point in enumerate(shown):
        _add_lack(figure, index, point.row, place)
    _add_required(figure, shown)
    _add_before(figure, shown, place)
    for wrong in (False, True):
        _add_dots(figure, shown, place, wrong)
    return figure


def _ends(points: Sequence[GradientPoint]) -> tuple[float, float]:
    rows = [row for point in points for row in (point.row, point.before) if row is not None]
    seen = [ratio for row in rows for ratio in (row.sqnr_db, row.required_db) if ratio is not None]
    finite = [ratio for ratio in seen if math.isfinite(ratio)] or [0.0]
    return min(finite), max(finite)


def _range(points: Sequence[GradientPoint], low: float, high: float) -> list[float]:
    ratios = [row.sqnr_db for point in points for row in (point.row, point.before) if row is not None]
    margin = max(1.0, 0.03 * (high - low))
    return [
        low - margin - 1.5 * _APART_DB * (-math.inf in ratios),
        high + margin + 1.5 * _APART_DB * (math.inf in ratios),
    ]


def _placer(low: float, high: float) -> Callable[[float], float]:
    """Returns what keeps a ratio on the axis: infinities stand a little beyond everything finite."""
    return lambda ratio: round(min(max(ratio, low - _APART_DB), high + _APART_DB), 2)


def _add_lack(figure: go.Figure, index: int, row: GradientRow, place: Callable[[float], float]) -> None:
    if row.is_wrong and row.sqnr_db is not None and row.required_db is not None:
        ends = {"x0": place(row.sqnr_db), "x1": place(row.required_db), "y0": index, "y1": index}
        figure.add_shape(type="line", line={"color": "var(--bad)", "width": 2}, layer="below", **ends)


def _add_required(figure: go.Figure, points: Sequence[GradientPoint]) -> None:
    found = [(point.row.required_db, index) for index, point in enumerate(points) if point.row.required_db is not None]
    if found:
        values, rows = zip(*found, strict=True)
        figure.add_trace(
            go.Scatter(
                x=[round(value, 2) for value in values],
                y=rows,
                mode="markers",
                marker={"symbol": "line-ns", "size": 11, "line": {"width": 2, "color": "var(--ink)"}},
                hoverinfo="skip",
            )
        )


def _add_before(figure: go.Figure, points: Sequence[GradientPoint], place: Callable[[float], float]) -> None:
    found: dict[bool, list[tuple[float, int, str]]] = {True: [], False: []}
    for index, point in enumerate(points):
        ratio = point.before.sqnr_db if point.before is not None else None
        if ratio is not None:
            words = _BEFORE.format(name=label(point.row.parameter), ratio=decibels(ratio))
            found[ratio > -math.inf].append((place(ratio), index, words))
    for is_finite, marks in found.items():
        if marks:
            _add_marks(figure, marks, "circle-open" if is_finite else "x-open", "var(--plain-line)")


def _add_dots(figure: go.Figure, points: Sequence[GradientPoint], place: Callable[[float], float], wrong: bool) -> None:
    for symbol, is_finite in (("circle", True), ("x", False)):
        found = [
            (place(point.row.sqnr_db), index, _words(point.row))
            for index, point in enumerate(points)
            if point.row.sqnr_db is not None
            and point.is_faulty == wrong
            and (point.row.sqnr_db > -math.inf) == is_finite
        ]
        if found:
            _add_marks(figure, found, symbol, "var(--bad)" if wrong else "var(--accent)")


def _add_marks(figure: go.Figure, found: Sequence[tuple[float, int, str]], symbol: str, colour: str) -> None:
    values, rows, words = zip(*found, strict=True)
    figure.add_trace(
        go.Scatter(
            x=values,
            y=rows,
            mode="markers",
            marker={"symbol": symbol, "size": 9, "color": colour},
            hovertext=words,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )


def _words(row: GradientRow) -> str:
    return _HOVER.format(
        name=label(row.parameter),
        ratio=decibels(row.sqnr_db),
        required=decibels(row.required_db),
        cosine=numbers.MISSING if row.cosine is None else f"{row.cosine:.5f}",
        zeros=numbers.percent(row.zero_share),
        float32_zeros=numbers.percent(row.float32_zero_share),
        stalled=numbers.percent(row.stalled_share),
        float32_stalled=numbers.percent(row.float32_stalled_share),
    )
