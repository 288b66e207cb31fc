# SPDX-License-Identifier: Apache-2.0
"""Steps per second over float32's: predicted with its range, measured where it was."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from floatwise.language import Text
from floatwise.report import numbers
from floatwise.report.figures import style
from floatwise.report.figures.text import label
from floatwise.report.speed_rows import SpeedRow

__all__ = ["speed_figure"]

_ROW_PX, _FOOT_PX, _RIGHT_PX = 36, 46, 56
_TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)

_AXIS = Text("speed, float32 = 1", "速度（float32 = 1）")
_PREDICTED = Text("{name}<br>predicted: {ratio}× ({low}–{high}×)", "{name}<br>预测：{ratio}×（{low}–{high}×）")
_MEASURED = Text("{name}<br>measured: {ratio}× ({low}–{high}×)", "{name}<br>实测：{ratio}×（{low}–{high}×）")


def speed_figure(rows: Sequence[SpeedRow]) -> go.Figure:
    """Returns a dot with its range for each prediction and a diamond for each measurement."""
    figure = style.blank(_ROW_PX * len(rows) + _FOOT_PX, t=4, b=_FOOT_PX - 4, r=_RIGHT_PX)
    targets = [row.target for row in rows if row.target]
    recipes = [row.recipe for row in rows]
    names, below = (targets, recipes) if targets else (recipes, [])
    figure.layout.yaxis = style.names_axis(figure, "yaxis", names, below=below, showgrid=True)
    ends = [end for row in rows for triple in (row.predicted, row.measured) if triple for end in triple]
    finite = [end for end in ends if math.isfinite(end) and end > 0] or [1.0]
    low, high = min(0.5, *finite) / 1.15, max(2.0, *finite) * 1.15
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    figure.layout.xaxis = style.tick_axis(
        ticks,
        [f"{tick:g}×" for tick in ticks],
        type="log",
        range=[math.log10(low), math.log10(high)],
        showline=True,
        ticks="outside",
        ticklen=4,
        title={"text": str(_AXIS), "standoff": 4},
    )
    figure.add_shape(
        type="line", x0=1, x1=1, yref="paper", y0=0, y1=1, line={"color": "var(--plain-line)", "dash": "dot"}
    )
    _add(figure, [(row.predicted, _place(row, index, -1), row.name) for index, row in enumerate(rows)], _PREDICTED)
    _add(figure, [(row.measured, _place(row, index, 1), row.name) for index, row in enumerate(rows)], _MEASURED)
    return figure


def _place(row: SpeedRow, index: int, side: int) -> float:
    """Returns the height of a mark: above or below the middle where the row has two."""
    return index + 0.2 * side * (row.predicted is not None and row.measured is not None)


def _add(figure: go.Figure, rows: Sequence[tuple[tuple[float, float, float] | None, float, str]], words: Text) -> None:
    found = [(triple, index, name) for triple, index, name in rows if triple and all(map(math.isfinite, triple))]
    if not found:
        return
    colour, symbol = ("var(--ink)", "diamond") if words is _MEASURED else ("var(--accent)", "circle")
    hovers = []
    for (low, ratio, high), place, name in found:
        factors = {"low": numbers.factor(low), "ratio": numbers.factor(ratio), "high": numbers.factor(high)}
        figure.add_annotation(
            text=numbers.ratio(ratio), x=1, xref="paper", xanchor="left", xshift=6, y=place, showarrow=False,
            font={"color": colour},
        )  # fmt: skip
        hovers.append(words.format(name=label(name), **factors))
    figure.add_trace(
        go.Scatter(
            x=[ratio for (_, ratio, _), _, _ in found],
            y=[index for _, index, _ in found],
            mode="markers",
            marker={"symbol": symbol, "size": 10, "color": colour},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [high - ratio for (_, ratio, high), _, _ in found],
                "arrayminus": [ratio - low for (low, ratio, _), _, _ in found],
                "color": colour,
                "thickness": 2,
                "width": 5,
            },
            hovertext=hovers,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )
