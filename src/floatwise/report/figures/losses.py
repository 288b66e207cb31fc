# SPDX-License-Identifier: Apache-2.0
"""The loss of every step, and below it how far each run is from float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from floatwise.language import Text
from floatwise.rehearse.loss_spread import FINAL_STEPS
from floatwise.report.figures import style
from floatwise.report.figures.text import label
from floatwise.report.losses import Curve, LossCurves

__all__ = ["DASHES", "losses_figure"]

#: How each kind of run is drawn.
DASHES: Mapping[str, str] = {"measured": "solid", "rehearsed": "dash", "without_islands": "dot"}
# A linear axis presses the end of a curve that falls by more than this into a flat line (convention).
_LOG_FROM = 4.0
# About the pixels of the plot: more points cannot be told apart.
_MOST_POINTS = 900
_LOSS_PX, _DIFFERENCE_PX, _GAP_PX, _HEAD_PX, _FOOT_PX, _LEFT_PX = 260, 130, 38, 26, 42, 58

_LOSS = Text("loss", "损失")
_LOSS_LOG = Text("loss (logarithmic)", "损失（对数坐标）")
_DIFFERENCE = Text("loss − float32's loss", "损失 − float32 的损失")
_STEP = Text("optimizer step", "优化器步数")
_HOVER = Text("step %{x}: %{y:.5g}", "第 %{x} 步：%{y:.5g}")
_BROKEN = Text("step %{x}: the loss is not finite", "第 %{x} 步：损失不是有限值")
_SPREAD = Text("float32's own spread", "float32 自身的波动")


def losses_figure(curves: LossCurves, colours: Mapping[str, str]) -> go.Figure:
    """Returns the figure; a cross at the top is a loss that is not finite.

    Args:
      curves: All runs.
      colours: By recipe.
    """
    has_differences = any(any(map(math.isfinite, curve.differences)) for curve in curves.curves)
    below = _DIFFERENCE_PX + _GAP_PX if has_differences else 0
    figure = style.blank(_HEAD_PX + _LOSS_PX + below + _FOOT_PX, t=_HEAD_PX, b=_FOOT_PX, l=_LEFT_PX)
    inside = _LOSS_PX + below
    _add_axes(figure, curves, [below / inside, 1.0], [0.0, _DIFFERENCE_PX / inside] if below else None)
    _add_spread(figure, curves)
    _add_run(figure, "float32", curves.float32, {"color": style.FLOAT32, "width": 5})
    for curve in curves.curves:
        line = {"color": colours[curve.recipe], "width": 2, "dash": DASHES[curve.kind]}
        _add_run(figure, curve.name, curve.losses, line)
        if below:
            _add_difference(figure, curve, line)
    if below:
        _add_allowed(figure, curves)
    return figure


def _add_axes(figure: go.Figure, curves: LossCurves, top: list[float], bottom: list[float] | None) -> None:
    steps = max(2, len(curves.float32), *(len(curve.losses) for curve in curves.curves), 0)
    margin = max(0.25, 0.01 * steps)
    reach = {"range": [1 - margin, steps + margin], "tick0": 0, "dtick": _step_between(steps)}
    ticks = {"showline": True, "ticks": "outside", "ticklen": 4, **reach}
    title = {"text": str(_STEP), "standoff": 4}
    low, high, log = _loss_range(curves)
    ends = [math.log10(low), math.log10(high)] if log else [low, high]
    grid = {"showgrid": True, "nticks": 6, "exponentformat": "power"}
    layout = figure.layout
    layout.yaxis = style.axis(domain=top, range=ends, type="log" if log else "linear", **grid)
    if log:
        values = _log_ticks(low, high)
        layout.yaxis.update(tickmode="array", tickvals=values, ticktext=[f"{value:.4g}" for value in values])
    layout.yaxis3 = style.axis(overlaying="y", range=[0, 1], visible=False, domain=top)
    layout.xaxis = style.axis(**ticks, anchor="y", **({"showticklabels": False} if bottom else {"title": title}))
    words = [(str(_LOSS_LOG if log else _LOSS), 1.0)]
    if bottom:
        size = _difference_size(curves)
        layout.yaxis2 = style.axis(domain=bottom, range=[-size, size], **{**grid, "nticks": 5}, zeroline=True)
        layout.yaxis2.zerolinecolor = "var(--plain-line)"
        layout.xaxis2 = style.axis(**ticks, anchor="y2", title=title)
        words.append((str(_DIFFERENCE), bottom[1]))
    for text, place in words:
        figure.add_annotation(
            text=text, x=0, y=place, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=5,
            xshift=-_LEFT_PX - 2, showarrow=False,
        )  # fmt: skip


def _loss_range(curves: LossCurves) -> tuple[float, float, bool]:
    band = list(zip(curves.float32, curves.spread, strict=False))
    values = [loss for run in (curves.float32, *(curve.losses for curve in curves.curves)) for loss in run]
    values += [loss + sign * spread for loss, spread in band for sign in (-1, 1)]
    seen = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(seen), max(seen)
    if low > 0 and high / low > _LOG_FROM:
        return low / 1.1, high * 1.15, True
    margin = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    return low - margin, high + margin, False


def _step_between(steps: int) -> int:
    """Returns a round number of steps between ticks: at most eight of them."""
    power = int(10 ** max(0, math.floor(math.log10(steps / 8))))
    return next(power * multiple for multiple in (1, 2, 5, 10) if steps / (power * multiple) <= 8)


def _log_ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten inside the range; only the powers when it is wide."""
    multiples = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [multiple * 10.0**power for power in powers for multiple in multiples]
    return [value for value in values if low <= value <= high]


def _difference_size(curves: LossCurves) -> float:
    seen = [abs(d) for curve in curves.curves for d in curve.differences if math.isfinite(d)]
    allowed = [curve.allowed for curve in curves.curves if curve.allowed is not None and math.isfinite(curve.allowed)]
    return 1.15 * max([*seen, *allowed]) or 1.0


def _add_spread(figure: go.Figure, curves: LossCurves) -> None:
    pairs = list(zip(curves.float32, curves.spread, strict=False))
    if not any(spread > 0 for _, spread in pairs):
        return
    steps = [index + 1 for index in range(len(pairs))]
    for sign, fill in ((1, None), (-1, "tonexty")):
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=[_shown(loss + sign * spread) for loss, spread in pairs],
                mode="lines",
                line={"width": 0},
                fill=fill,
                fillcolor="var(--band)",
                name=str(_SPREAD),
                hoverinfo="skip",
            )
        )


def _shown(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _add_run(figure: go.Figure, name: str, losses: Sequence[float], line: Mapping[str, object]) -> None:
    steps, values = _thinned(losses)
    hover = f"{label(name)}<br>{_HOVER}<extra></extra>"
    figure.add_trace(
        go.Scatter(
            x=steps, y=values, mode="lines+markers" if len(values) == 1 else "lines", line=line, name=label(name),
            hovertemplate=hover,
        )
    )  # fmt: skip
    broken = [step for step, loss in enumerate(losses, start=1) if not math.isfinite(loss)]
    if broken:
        figure.add_trace(
            go.Scatter(
                x=broken[:_MOST_POINTS],
                y=[0.97] * min(len(broken), _MOST_POINTS),
                yaxis="y3",
                mode="markers",
                marker={"symbol": "x", "size": 9, "color": line["color"]},
                name=label(name),
                hovertemplate=f"{label(name)}<br>{_BROKEN}<extra></extra>",
            )
        )


def _thinned(values: Sequence[float]) -> tuple[list[int], list[float | None]]:
    stride = max(1, math.ceil(len(values) / _MOST_POINTS))
    kept = [
        index
        for index, value in enumerate(values)
        if index % stride == 0 or index == len(values) - 1 or not math.isfinite(value)
    ]
    return [index + 1 for index in kept], [_shown(values[index]) for index in kept]


def _add_difference(figure: go.Figure, curve: Curve, line: Mapping[str, object]) -> None:
    steps, values = _thinned(curve.differences)
    hover = f"{label(curve.name)}<br>{_HOVER}<extra></extra>"
    figure.add_trace(
        go.Scatter(
            x=steps, y=values, xaxis="x2", yaxis="y2", mode="lines+markers", line=line, marker={"size": 4},
            name=label(curve.name), hovertemplate=hover,
        )
    )  # fmt: skip


def _add_allowed(figure: go.Figure, curves: LossCurves) -> None:
    """Shades how far final losses may be off, once for each such distance."""
    found = {
        (len(curve.float32), float(f"{curve.allowed:.3g}"))
        for curve in curves.curves
        if curve.allowed is not None and math.isfinite(curve.allowed)
    }
    for last, allowed in sorted(found):
        figure.add_shape(
            type="rect",
            xref="x2",
            yref="y2",
            x0=max(1, last - FINAL_STEPS + 1),
            x1=last,
            y0=-allowed,
            y1=allowed,
            fillcolor="var(--allowed)",
            line={"width": 0},
            layer="below",
        )
