# SPDX-License-Identifier: Apache-2.0
"""The charts that compare the plan with float32: losses and bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from floatwise.language import Text
from floatwise.planner.decision import LossParity
from floatwise.report import numbers, svg
from floatwise.report.svg import WIDTH, Axis, element, label

__all__ = ["Bar", "bars_chart", "loss_chart"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 28, 44
_LOSS_HEIGHT = 290
# One point for each pixel of the plot is all that can be seen.
_MOST_POINTS = WIDTH - _LEFT - _RIGHT
# A linear axis presses the end of a curve that falls by more than this into a flat line (convention).
_LOG_FROM = 4.0

_LOSS = Text("loss", "损失")
_LOSS_LOG = Text("loss, logarithmic", "损失（对数坐标）")
_STEP = Text("optimizer step", "优化器步数")
_LOSS_TITLE = Text("Loss of every step", "每一步的损失")
_LOSS_DESCRIPTION = Text(
    "Last loss under the plan {planned}, in float32 {float32}.",
    "末步损失：该计划 {planned}，float32 {float32}。",
)


def loss_chart(losses: Mapping[str, Sequence[float]], parity: LossParity | None) -> Markup:
    """Returns both loss curves and the band of float32's own spread; a cross is a loss that is not finite."""
    curves = {name: losses.get(name, ()) for name in ("float32", "planned")}
    seen = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    spread = [edge for edge in parity.spread if math.isfinite(edge)] if parity else []
    bottom = float(_LOSS_HEIGHT - _BOTTOM)
    y = _loss_axis([*seen, *spread] or [0.0], bottom)
    x = Axis(1, max(2, *map(len, curves.values())), _LEFT, WIDTH - _RIGHT)
    parts = [*_y_grid(y), *_x_ticks(x, bottom)]
    if len(spread) == 2:
        top, height = y.at(spread[1]), max(2.0, y.at(spread[0]) - y.at(spread[1]))
        parts.append(element("rect", x=_LEFT, y=top, width=x.end - x.start, height=height, class_="band"))
    for name, curve in curves.items():
        parts += _curve(curve, x, y, name)
    last = {name: numbers.quantity(curve[-1] if curve else None) for name, curve in curves.items()}
    return svg.chart("losses", str(_LOSS_TITLE), _LOSS_DESCRIPTION.format(**last), _LOSS_HEIGHT, parts)


def _loss_axis(values: Sequence[float], bottom: float) -> Axis:
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOG_FROM:
        return Axis(low / 1.1, high * 1.1, bottom, _TOP, log=True)
    margin = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return Axis(low - margin, high + margin, bottom, _TOP)


def _y_grid(y: Axis) -> Iterator[Markup]:
    yield label(0, 14, str(_LOSS_LOG if y.log else _LOSS), anchor="start", class_="axis")
    for tick in svg.log_ticks(y.low, y.high) if y.log else svg.linear_ticks(y.low, y.high):
        place = y.at(tick)
        yield element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=place, y2=place, class_="grid")
        yield label(_LEFT - 8, place + 4, f"{tick:.4g}", anchor="end")


def _x_ticks(x: Axis, bottom: float) -> Iterator[Markup]:
    yield element("line", x1=x.start, x2=x.end, y1=bottom, y2=bottom, class_="base")
    for tick in svg.linear_ticks(x.low, x.high, about=6):
        if tick == int(tick):
            yield label(x.at(tick), bottom + 18, str(int(tick)))
    yield label(x.end, bottom + 38, str(_STEP), anchor="end", class_="axis")


def _curve(curve: Sequence[float], x: Axis, y: Axis, class_: str) -> Iterator[Markup]:
    stride = max(1, math.ceil(len(curve) / _MOST_POINTS))
    run: list[tuple[float, float]] = []
    for index, value in enumerate(curve):
        if not math.isfinite(value):
            yield label(x.at(index + 1), y.end + 4, "×", class_=f"{class_} cross")
        elif index % stride == 0 or index == len(curve) - 1:
            run.append((x.at(index + 1), y.at(value)))
            continue
        else:
            continue
        if run:
            yield svg.polyline(run, class_)
            run = []
    if run:
        yield svg.polyline(run, class_)


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, how long, its value in words, and its class in the style sheet."""

    name: str
    value: float
    text: str
    class_: str


_BAR_LEFT, _BAR_RIGHT, _BAR_STEP, _BAR_HEIGHT = 112, 84, 34, 20


def bars_chart(name: str, title: str, unit: str, unit_size: float, bars: Sequence[Bar]) -> Markup:
    """Returns horizontal bars over an axis that begins at zero.

    Args:
      name: Unique on the page.
      title: What is compared.
      unit: Of the axis, "ms".
      unit_size: One unit in the units of the bars' values.
      bars: From the top.
    """
    x = Axis(0, max(bar.value for bar in bars) or 1.0, _BAR_LEFT, WIDTH - _BAR_RIGHT)
    bottom = 6 + _BAR_STEP * len(bars)
    parts = []
    for tick in svg.linear_ticks(0, x.high / unit_size, about=4):
        place = x.at(tick * unit_size)
        parts.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="grid"))
        parts.append(label(place, bottom + 18, f"{tick:.4g}"))
    parts.append(label(WIDTH, bottom + 18, unit, anchor="end", class_="axis"))
    for index, bar in enumerate(bars):
        top = 8 + _BAR_STEP * index
        length = x.at(bar.value) - x.start
        parts.append(element("rect", x=x.start, y=top, width=length, height=_BAR_HEIGHT, rx=2, class_=bar.class_))
        parts.append(label(_BAR_LEFT - 10, top + 15, bar.name, anchor="end", class_="name"))
        parts.append(label(x.start + length + 8, top + 15, bar.text, anchor="start", class_="value"))
    description = "; ".join(f"{bar.name}: {bar.text}" for bar in bars)
    return svg.chart(name, title, description, bottom + 26, parts)
