# SPDX-License-Identifier: Apache-2.0
"""The chart of the loss scales that lose nothing."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence

from markupsafe import Markup

from floatwise.language import Text
from floatwise.planner.decision import LossScaleChoice
from floatwise.report import numbers, svg
from floatwise.report.svg import WIDTH, Axis, element, label

__all__ = ["loss_scale_chart"]

_HEIGHT = 156
_TOP, _DEPTH = 34, 40
_BOTTOM = _TOP + _DEPTH
# Room for the words on both sides of the window.
_MARGIN_LOG2 = 6
# torch.amp.GradScaler starts at 65536 (its documentation, `init_scale`).
_TORCH_DEFAULT_LOG2 = 16

_TITLE = Text("Window of safe loss scales", "安全的损失缩放范围")
_DESCRIPTION = Text(
    "Safe from 2^{low} to 2^{high}; the plan starts at {initial}.",
    "2^{low} 至 2^{high} 安全；计划从 {initial} 开始。",
)
_AXIS = Text("loss scale, powers of two", "损失缩放系数（2 的幂）")
_TOO_SMALL = Text("gradients vanish", "梯度下溢")
_TOO_LARGE = Text("overflow", "上溢")
_SAFE = Text("safe", "安全")
_STARTS = Text("the plan starts at {initial}", "计划初始值 {initial}")
_DEFAULT = Text("PyTorch's default, 2^{power}", "PyTorch 默认值 2^{power}")


def loss_scale_chart(choice: LossScaleChoice) -> Markup:
    """Returns the window on a log2 axis, with the plan's first scale and PyTorch's."""
    low, high = choice.window_log2
    start = math.log2(choice.initial) if choice.initial > 0 else 0.0
    ends = (low, high, start, 0, _TORCH_DEFAULT_LOG2)
    x = Axis(math.floor(min(ends)) - _MARGIN_LOG2, math.ceil(max(ends)) + _MARGIN_LOG2, 8, WIDTH - 8)
    marks = [x.at(start), x.at(_TORCH_DEFAULT_LOG2)]
    parts = list(_zones(x, low, high, marks))
    initial = numbers.power_of_two(choice.initial)
    parts += _mark(marks[0], _TOP - 14, (_TOP - 8, _BOTTOM), _STARTS.format(initial=initial), "planned")
    named = {_TORCH_DEFAULT_LOG2} if start != _TORCH_DEFAULT_LOG2 else set()
    for power in named:
        parts += _mark(marks[1], _BOTTOM + 46, (_TOP, _BOTTOM + 30), _DEFAULT.format(power=power), "reference")
    parts += _ticks(x, without=named)
    said = _DESCRIPTION.format(low=low, high=high, initial=initial)
    return svg.chart("loss-scale", str(_TITLE), said, _HEIGHT, parts)


def _zones(x: Axis, low: int, high: int, marks: Sequence[float]) -> Iterator[Markup]:
    zones = ((x.low, low, "bad", _TOO_SMALL), (low, high, "good", _SAFE), (high, x.high, "bad", _TOO_LARGE))
    for start, end, class_, text in zones:
        left, right = x.at(start), x.at(end)
        if right > left:
            yield element("rect", x=left, y=_TOP, width=right - left, height=_DEPTH, class_=f"zone {class_}")
            place = _free_place(left, right, _text_width(str(text)), marks)
            if place is not None:
                yield label(place, _TOP + 25, str(text), class_="zone-name")


def _free_place(left: float, right: float, width: float, marks: Sequence[float]) -> float | None:
    """Returns a centre for a text of this width where no mark crosses it; None where it would not fit."""
    half = width / 2
    for centre in ((left + right) / 2, left + half, right - half):
        fits = centre - half >= left and centre + half <= right
        if fits and not any(abs(mark - centre) < half for mark in marks):
            return centre
    return None


def _text_width(text: str) -> float:
    """Returns about how wide a text of 13 pixels is with its margins; East Asian characters are square."""
    return sum(13.0 if ord(character) > 0x2E7F else 7.0 for character in text) + 16


def _ticks(x: Axis, without: Container[int]) -> Iterator[Markup]:
    step = 4 if x.high - x.low <= 44 else 8
    for power in range(math.ceil(x.low / step) * step, math.floor(x.high) + 1, step):
        yield element("line", x1=x.at(power), x2=x.at(power), y1=_BOTTOM, y2=_BOTTOM + 5, class_="base")
        if power not in without:
            yield svg.power_label(x.at(power), _BOTTOM + 22, power)
    yield label(x.end, _HEIGHT - 6, str(_AXIS), anchor="end", class_="axis")


def _mark(place: float, y: float, ends: tuple[float, float], text: str, class_: str) -> Iterator[Markup]:
    half = _text_width(text) / 2
    yield element("line", x1=place, x2=place, y1=float(ends[0]), y2=float(ends[1]), class_=f"mark {class_}")
    yield label(min(max(place, half), WIDTH - half), y, text, class_=f"value {class_}")
