# SPDX-License-Identifier: Apache-2.0
"""The chart of what the formats can hold against the largest value of each role."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from floatwise.formats import Format
from floatwise.language import Text
from floatwise.planner.decision import RoleRow
from floatwise.report import numbers, sentences, svg
from floatwise.report.svg import WIDTH, Axis, element, label

__all__ = ["range_chart"]

_LEFT, _RIGHT, _ROW, _TOP = 122, 70, 26, 6
# Formats with float32's exponents hold far more than training produces; at full length they would press the
# others into a corner, so the axis follows the narrower formats (convention).
_NARROW_LOG2 = 64
_MARGIN_LOG2 = 6

_TITLE = Text("Largest values against the range of each format", "最大值与各格式可表示范围")
_AXIS = Text("magnitude, powers of two", "数值大小（2 的幂）")
_HOLDS = Text("{format} holds 2^{low} to 2^{high}", "{format} 可表示 2^{low} 至 2^{high}")
_REACHES = Text("{role} reach {amax}", "{role}最大 {amax}")


def range_chart(rows: Sequence[RoleRow], formats: Sequence[Format]) -> Markup:
    """Returns a bar for the range of each format and, below, a dot for the largest value of each role."""
    largest = {row.role: row.amax for row in rows if row.amax > 0}
    bottom = float(_TOP + _ROW * (len(formats) + len(largest)))
    x = _axis([math.log2(amax) for amax in largest.values() if math.isfinite(amax)], formats)
    parts = list(_ticks(x, bottom))
    for index, fmt in enumerate(formats):
        parts += _span(x, fmt, _TOP + _ROW * index, bottom)
    for index, (role, amax) in enumerate(largest.items(), start=len(formats)):
        parts += _dot(x, role, amax, _TOP + _ROW * index)
    return svg.chart("range", str(_TITLE), _description(largest, formats), int(bottom) + 46, parts)


def _bounds(fmt: Format) -> tuple[float, float]:
    return math.log2(fmt.smallest_subnormal), math.log2(fmt.max)


def _axis(exponents: Sequence[float], formats: Sequence[Format]) -> Axis:
    narrow = [fmt for fmt in formats if fmt.dynamic_range_log2 <= _NARROW_LOG2]
    ends = [*exponents, *(edge for fmt in narrow for edge in _bounds(fmt))] or [0.0]
    low, high = math.floor(min(ends)) - _MARGIN_LOG2, math.ceil(max(ends)) + _MARGIN_LOG2
    return Axis(low, high, _LEFT, WIDTH - _RIGHT)


def _span(x: Axis, fmt: Format, top: float, bottom: float) -> Iterator[Markup]:
    low, high = _bounds(fmt)
    normal = x.at(math.log2(fmt.smallest_normal))
    yield label(_LEFT - 10, top + 16, fmt.name, anchor="end", class_="name")
    for left, right, class_ in ((x.at(low), normal, "span subnormal"), (normal, x.at(high), "span")):
        yield element("rect", x=left, y=top + 6.0, width=right - left, height=12, class_=class_)
    if high < x.high:
        yield element("line", x1=x.at(high), x2=x.at(high), y1=top + 18.0, y2=bottom, class_="limit")
        yield svg.power_label(x.at(high) + 6, top + 17, math.ceil(high), anchor="start")
    else:
        yield label(x.end + 6, top + 16, "→", anchor="start")


def _dot(x: Axis, role: str, amax: float, top: float) -> Iterator[Markup]:
    place = x.end if math.isinf(amax) else x.at(math.log2(amax))
    yield label(_LEFT - 10, top + 16, sentences.role_name(role), anchor="end", class_="name")
    yield element("line", x1=x.start, x2=x.end, y1=top + 12.0, y2=top + 12.0, class_="grid")
    yield element("circle", cx=place, cy=top + 12.0, r=5, class_="amax over" if math.isinf(amax) else "amax")
    yield label(WIDTH, top + 16, numbers.quantity(amax), anchor="end", class_="value")


def _ticks(x: Axis, bottom: float) -> Iterator[Markup]:
    step = 8 if x.high - x.low <= 80 else 16
    yield element("line", x1=x.start, x2=x.end, y1=bottom, y2=bottom, class_="base")
    for power in range(math.ceil(x.low / step) * step, math.floor(x.high) + 1, step):
        yield element("line", x1=x.at(power), x2=x.at(power), y1=bottom, y2=bottom + 5, class_="base")
        yield svg.power_label(x.at(power), bottom + 21, power)
    yield label(x.end, bottom + 42, str(_AXIS), anchor="end", class_="axis")


def _description(largest: Mapping[str, float], formats: Sequence[Format]) -> str:
    said = [
        _HOLDS.format(format=fmt.name, low=round(_bounds(fmt)[0]), high=math.ceil(_bounds(fmt)[1])) for fmt in formats
    ]
    said += [
        _REACHES.format(role=sentences.role_name(role), amax=numbers.quantity(amax)) for role, amax in largest.items()
    ]
    return "; ".join(said)
