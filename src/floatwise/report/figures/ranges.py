# SPDX-License-Identifier: Apache-2.0
"""What formats hold, as lanes over a histogram of exponents, and their ends as lines through it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from floatwise.formats import Format, get_format
from floatwise.language import Text
from floatwise.planner.decision import LossScaleChoice
from floatwise.report import numbers
from floatwise.report.figures.text import label, power

__all__ = ["Lane", "add_ends", "add_lanes", "lanes_for", "window_ends"]

_WINDOW_HOVER = Text(
    "Under loss scales from {low} to {high}, float16's upper end lies here.",
    "损失缩放取 {low} 至 {high} 时，float16 的上限落在此处。",
)
_RANGE_HOVER = Text(
    "{format} holds {low} to {high}, in full from {normal} on.",
    "{format} 可表示 {low} 至 {high}，自 {normal} 起位数完整。",
)


@dataclass(frozen=True)
class Lane:
    """A format's range, for values before a loss scale of 2**shift multiplies them."""

    name: str
    format: Format
    shift: int = 0

    @property
    def ends(self) -> tuple[float, float, float]:
        """Places of the smallest subnormal, the smallest normal and the largest value.

        The bin of [2^e, 2^(e+1)) is drawn at e and one unit wide, so that 2^e itself is at e - 0.5.
        """
        row = self.format
        low, normal, high = (
            math.log2(end) - self.shift - 0.5 for end in (row.smallest_subnormal, row.smallest_normal, row.max)
        )
        return low, normal, high


def lanes_for(choice: LossScaleChoice | None) -> list[Lane]:
    """Returns the 16-bit formats, and float16 under a loss scale where there is one; the last is judged by."""
    float16 = get_format("float16")
    lanes = [Lane("bfloat16", get_format("bfloat16")), Lane("float16", float16)]
    if choice is not None:
        name = f"float16 × {numbers.power_of_two(choice.initial)}"
        lanes.append(Lane(name, float16, numbers.nearest_log2(choice.initial)))
    return lanes


def window_ends(choice: LossScaleChoice) -> tuple[float, float]:
    """Returns between which places float16's upper end lies under the scales of the window."""
    top = math.ceil(math.log2(get_format("float16").max)) - 0.5
    low_log2, high_log2 = choice.window_log2
    return top - high_log2, top - low_log2


def add_lanes(
    figure: go.Figure, lanes: Sequence[Lane], choice: LossScaleChoice | None, ends: tuple[float, float]
) -> None:
    """Draws a bar for each lane, and for the window below them.

    Args:
      figure: Whose first axes are those of the lanes.
      lanes: From the top.
      choice: The loss scale and its window.
      ends: Of the horizontal axis; what reaches further is cut there.
    """
    for index, lane in enumerate(lanes):
        low, normal, high = lane.ends
        row, shift = lane.format, lane.shift
        hover = _RANGE_HOVER.format(
            format=label(lane.name),
            low=power(math.log2(row.smallest_subnormal) - shift),
            high=power(math.ceil(math.log2(row.max)) - shift),
            normal=power(row.min_exponent - shift),
        )
        for start, end, colour in ((low, normal, "var(--range-soft)"), (normal, high, "var(--range)")):
            figure.add_trace(_bar(start, end, ends, index, colour, hover))
    if choice is not None:
        low_log2, high_log2 = choice.window_log2
        hover = _WINDOW_HOVER.format(low=power(low_log2), high=power(high_log2))
        figure.add_trace(_bar(*window_ends(choice), ends, len(lanes), "var(--window-line)", hover))


def _bar(start: float, end: float, ends: tuple[float, float], lane: int, colour: str, hover: str) -> go.Bar:
    start, end = (min(max(place, ends[0]), ends[1]) for place in (start, end))
    return go.Bar(
        orientation="h",
        base=[start],
        x=[max(0.0, end - start)],
        y=[lane],
        width=[0.5],
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate=f"{hover}<extra></extra>",
        xaxis="x",
        yaxis="y",
    )


def add_ends(
    figure: go.Figure,
    lanes: Sequence[Lane],
    choice: LossScaleChoice | None,
    spans: Sequence[tuple[float, float]],
    bottoms: Sequence[float],
) -> None:
    """Draws the ends of float16's ranges as lines, and the window as a shade.

    Args:
      figure: Where to.
      lanes: As in `add_lanes`.
      choice: The same.
      spans: From where to where on the paper, of all but the uppermost span; lines leave out what is between.
      bottoms: On the paper, where each lane's bar ends, the window's among them: there the lines begin.
    """
    last, *others = spans
    shapes: list[dict[str, Any]] = []
    for lane, bottom in zip(lanes, bottoms, strict=False):
        if lane.format.name != "float16":
            continue
        judged = {"color": "var(--ink)", "width": 1}
        line = judged if lane is lanes[-1] else {"color": "var(--plain-line)", "width": 1, "dash": "dot"}
        for low, high in ((last[0], bottom), *others):
            shapes += [{"type": "line", "x0": x, "x1": x, "y0": low, "y1": high, "line": line} for x in lane.ends]
    if choice is not None:
        left, right = window_ends(choice)
        shade = {"type": "rect", "x0": left, "x1": right, "fillcolor": "var(--window)", "layer": "below"}
        for low, high in ((last[0], bottoms[-1]), *others):
            shapes.append({**shade, "y0": low, "y1": high, "line": {"width": 0}})
    figure.layout.shapes = [{"xref": "x", "yref": "paper", **shape} for shape in shapes]
