# SPDX-License-Identifier: Apache-2.0
"""The loss scales that lose nothing: gradients that vanish under smaller ones, overflow above."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from floatwise.language import Text
from floatwise.planner.decision import LossScaleChoice
from floatwise.report import numbers
from floatwise.report.figures import style
from floatwise.report.figures.text import power
from floatwise.report.loss_scale import TORCH_DEFAULT_LOG2, ScaleCurve

__all__ = ["loss_scale_figure"]

_PLOT_PX, _HEAD_PX, _FOOT_PX, _LEFT_PX = 200, 46, 46, 72
_LEAST_SHARE = 1e-6
_SHARES = (1.0, 1e-2, 1e-4, 1e-6)

_AXIS = Text("loss scale", "损失缩放系数")
_HOVER = Text("loss scale {scale}<br>{share} become zero", "损失缩放 {scale}<br>{share} 变为零")
_OVERFLOWS = Text("loss scale {scale}<br>the largest gradient overflows", "损失缩放 {scale}<br>最大的梯度上溢")
_PLAN = Text("start: {scale}", "初始值 {scale}")
_TORCH = Text("PyTorch's default: {scale}", "PyTorch 默认值 {scale}")


def loss_scale_figure(curve: ScaleCurve, choice: LossScaleChoice) -> go.Figure:
    """Returns the share of gradients that vanish at each scale, with the window, the plan's scale and PyTorch's."""
    low, high = choice.window_log2
    ends = curve.scales_log2[0] - 0.5, curve.scales_log2[-1] + 0.5
    figure = style.blank(_HEAD_PX + _PLOT_PX + _FOOT_PX, t=_HEAD_PX, b=_FOOT_PX, l=_LEFT_PX)
    wide, small = (_ticks(curve, step) for step in (4, 8))
    figure.layout.xaxis = style.tick_axis(
        *wide,
        range=list(ends),
        showline=True,
        ticks="outside",
        ticklen=4,
        title={"text": str(_AXIS), "standoff": 4},
    )
    style.narrow(figure, {"xaxis.tickvals": small[0], "xaxis.ticktext": small[1]})
    figure.layout.yaxis = style.tick_axis(
        _SHARES,
        [f"{100 * share:g} %" for share in _SHARES],
        type="log",
        range=[math.log10(_LEAST_SHARE), 0.1],
        showgrid=True,
    )
    for start, end, colour in ((low, high, "var(--window)"), (high, ends[1], "var(--over-soft)")):
        if end > start:
            figure.add_shape(
                type="rect", x0=start, x1=end, yref="paper", y0=0, y1=1, fillcolor=colour, line={"width": 0},
                layer="below",
            )  # fmt: skip
    _add_curve(figure, curve, high)
    _add_marks(figure, choice, ends)
    return figure


def _ticks(curve: ScaleCurve, step: int) -> tuple[list[int], list[str]]:
    powers = [scale for scale in curve.scales_log2 if scale % step == 0]
    return powers, [power(scale) for scale in powers]


def _add_curve(figure: go.Figure, curve: ScaleCurve, high: int) -> None:
    hovers = []
    for scale, share in zip(curve.scales_log2, curve.flushed, strict=True):
        words = _OVERFLOWS if scale > high else _HOVER
        hovers.append(words.format(scale=power(scale), share=numbers.percent(share)))
    figure.add_trace(
        go.Scatter(
            x=list(curve.scales_log2),
            y=[float(f"{max(share, _LEAST_SHARE):.4g}") if share else None for share in curve.flushed],
            mode="lines+markers",
            line={"color": "var(--lost)", "width": 2},
            marker={"size": 5},
            hovertext=hovers,
            hovertemplate="%{hovertext}<extra></extra>",
        )
    )


def _add_marks(figure: go.Figure, choice: LossScaleChoice, ends: tuple[float, float]) -> None:
    start = math.log2(choice.initial) if choice.initial > 0 else 0.0
    marks = [(start, _PLAN.format(scale=_words(choice.initial)), "var(--accent)", 22, "solid")]
    if start != TORCH_DEFAULT_LOG2:
        words = _TORCH.format(scale=power(TORCH_DEFAULT_LOG2))
        marks.append((TORCH_DEFAULT_LOG2, words, "var(--plain-line)", 2, "dash"))
    for place, words, colour, rise, dash in marks:
        line = {"color": colour, "width": 2, "dash": dash}
        figure.add_shape(type="line", x0=place, x1=place, yref="paper", y0=0, y1=1, line=line)
        # Names grow away from the nearer side, so that they stay on the page.
        is_right = place > (ends[0] + ends[1]) / 2
        figure.add_annotation(
            x=place,
            y=1,
            yref="paper",
            text=words,
            xanchor="right" if is_right else "left",
            yanchor="bottom",
            yshift=rise,
            xshift=6 if is_right else -6,
            showarrow=False,
            font={"color": colour if colour != "var(--plain-line)" else "var(--soft)"},
        )


def _words(scale: float) -> str:
    exponent = math.log2(scale) if scale > 0 else math.nan
    return power(exponent) if exponent == round(exponent) else numbers.quantity(scale)
