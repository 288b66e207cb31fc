# SPDX-License-Identifier: Apache-2.0
"""What inline SVG charts are made of: escaped elements, axes and their ticks.

Colours are in the page's style sheet, by class, so that a chart follows light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from floatwise.report.plain import plain

__all__ = ["Axis", "chart", "element", "label", "linear_ticks", "log_ticks", "polyline", "power_label"]

# About the width of a phone in CSS pixels, so that text stays legible there and grows little elsewhere.
WIDTH = 480


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """Returns one element; text and values are escaped, `class_` and `text_anchor` become SVG's names."""
    pairs = [
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _value(value))
        for name, value in attributes.items()
    ]
    inner = Markup("").join(_text(part) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), Markup("").join(pairs), inner)


def _value(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else plain(value)


def _text(part: str) -> Markup:
    return part if isinstance(part, Markup) else escape(plain(part))


def chart(name: str, title: str, description: str, height: int, parts: Iterable[str]) -> Markup:
    """Returns a whole chart, named and described for those who do not see it."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *parts,
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def label(x: float, y: float, *text: str, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Returns a text at a place."""
    return element("text", *text, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def power_label(x: float, y: float, exponent: int, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Returns 2 with its exponent raised."""
    raised = element("tspan", str(exponent).replace("-", "−"), dy="-5", class_="raised")
    return label(x, y, "2", raised, anchor=anchor, class_=class_)


@dataclass(frozen=True)
class Axis:
    """Data to pixels along one direction.

    Attributes:
      low: Smallest value shown, drawn at `start`.
      high: Largest value shown, drawn at `end`.
      log: True for a logarithmic axis.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Returns where `value` is drawn; values outside are drawn at the nearer edge."""
        clipped = min(max(value, self.low), self.high)
        low, high = self._scaled(self.low), self._scaled(self.high)
        if high == low:
            return (self.start + self.end) / 2
        return self.start + (self._scaled(clipped) - low) / (high - low) * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Returns round values inside the range, about so many, spaced by 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next((power * m for m in (1, 2, 5) if span / (power * m) <= about), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten inside the range; only the powers when it is wide."""
    multiples = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in multiples if low <= m * 10.0**p <= high]


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """Returns a line through pixels; a single point becomes a dot."""
    if len(points) == 1:
        return element("circle", cx=points[0][0], cy=points[0][1], r=3, class_=f"{class_} dot")
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)
