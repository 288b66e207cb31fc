# SPDX-License-Identifier: Apache-2.0
"""The predicted peak of memory by what it consists of, one bar for each recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from floatwise.language import Text
from floatwise.report import numbers
from floatwise.report.figures import style
from floatwise.report.figures.text import label
from floatwise.report.memory_bars import KINDS, MemoryBar, kind_bytes

__all__ = ["KIND_COLOURS", "memory_figure"]

KIND_COLOURS: Mapping[str, str] = {kind: f"var(--kind-{index})" for index, kind in enumerate(KINDS, start=1)}

_ROW_PX, _FOOT_PX = 40, 46
# Part of the axis that is left free for the sums at the ends of the bars.
_FREE, _NARROW_FREE = 0.14, 0.34

_HOVER = Text("{name}<br>{kind}: {size} ({share})", "{name}<br>{kind}：{size}（{share}）")
_MEASURED = Text("{name}<br>measured: {size}", "{name}<br>实测：{size}")
_AXIS = Text("peak tensor memory, {unit}", "张量内存峰值，{unit}")


def memory_figure(bars: Sequence[MemoryBar]) -> go.Figure:
    """Returns stacked bars with their sums, and a diamond where the peak was measured.

    Args:
      bars: From the top.
    """
    figure = style.blank(_ROW_PX * len(bars) + _FOOT_PX, t=4, b=_FOOT_PX - 4)
    peaks = [max(bar.memory.peak_bytes, bar.measured_bytes or 0) for bar in bars]
    size, unit = numbers.bytes_unit(max(peaks))
    longest = max(peaks) / size or 1.0
    figure.layout.yaxis = style.names_axis(figure, "yaxis", [bar.name for bar in bars])
    figure.layout.xaxis = style.axis(
        range=[0, longest / (1 - _FREE)],
        nticks=7,
        showgrid=True,
        title={"text": _AXIS.format(unit=unit), "standoff": 4},
    )
    style.narrow(figure, {"xaxis.range": [0, longest / (1 - _NARROW_FREE)], "xaxis.nticks": 4})
    figure.layout.barmode = "stack"
    sizes = [kind_bytes(bar.memory) for bar in bars]
    for kind, words in KINDS.items():
        if any(row[kind] for row in sizes):
            _add_kind(figure, bars, kind, [row[kind] for row in sizes], str(words), size)
    _add_sums(figure, bars, peaks, size)
    _add_measured(figure, bars, size)
    return figure


def _add_kind(
    figure: go.Figure, bars: Sequence[MemoryBar], kind: str, sizes: Sequence[int], words: str, unit_size: float
) -> None:
    hovers = [
        _HOVER.format(
            name=label(bar.name),
            kind=label(words),
            size=numbers.bytes_text(size),
            share=numbers.percent(size / bar.memory.peak_bytes if bar.memory.peak_bytes else 0.0),
        )
        for bar, size in zip(bars, sizes, strict=True)
    ]
    figure.add_trace(
        go.Bar(
            orientation="h",
            x=[round(size / unit_size, 4) for size in sizes],
            y=list(range(len(bars))),
            width=0.62,
            name=words,
            marker={"color": KIND_COLOURS[kind], "line": {"width": 1, "color": "var(--paper)"}},
            hovertext=hovers,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )


def _add_sums(figure: go.Figure, bars: Sequence[MemoryBar], peaks: Sequence[int], unit_size: float) -> None:
    figure.add_trace(
        go.Scatter(
            x=[peak / unit_size for peak in peaks],
            y=list(range(len(bars))),
            mode="text",
            text=[f"   {numbers.bytes_text(bar.memory.peak_bytes)}" for bar in bars],
            textposition="middle right",
            textfont={"color": "var(--ink)"},
            hoverinfo="skip",
            cliponaxis=False,
        )
    )


def _add_measured(figure: go.Figure, bars: Sequence[MemoryBar], unit_size: float) -> None:
    found = [(bar, index) for index, bar in enumerate(bars) if bar.measured_bytes is not None]
    if found:
        figure.add_trace(
            go.Scatter(
                x=[(bar.measured_bytes or 0) / unit_size for bar, _ in found],
                y=[index for _, index in found],
                mode="markers",
                marker={
                    "symbol": "diamond",
                    "size": 11,
                    "color": "var(--ink)",
                    "line": {"width": 1.5, "color": "var(--paper)"},
                },
                hovertext=[
                    _MEASURED.format(name=label(bar.name), size=numbers.bytes_text(bar.measured_bytes))
                    for bar, _ in found
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
