# SPDX-License-Identifier: Apache-2.0
"""How well gradients survive each rehearsal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from floatwise.language import Text
from floatwise.planner.decision import Rehearsal
from floatwise.report import numbers
from floatwise.report.drawing import Drawing, Key
from floatwise.report.figures import gradients_figure
from floatwise.report.figures.gradients import MOST_PARAMETERS
from floatwise.report.gradients import GradientPoint, worst_first
from floatwise.report.panels.panel import Panel
from floatwise.report.plain import paragraph, plain
from floatwise.report.rehearsals import decibels
from floatwise.report.tables import MOST_TABLE_ROWS, NumbersTable

__all__ = ["gradient_panels"]

_SAYS = Text(
    "Signal over noise of each parameter's gradient in the rehearsal of {recipe}, the worst first.",
    "{recipe} 预演中各参数梯度的信噪比，最差的在前。",
)
_FAULTY = Text("{wrong} of {total} gradients are at fault.", "{total} 个梯度中有 {wrong} 个不合格。")
_FINE = Text("All {total} gradients are as good as required.", "全部 {total} 个梯度均达到要求。")
_WORST = Text("The figure shows the {most} worst.", "图中为最差的 {most} 个。")
_GOOD_KEY = Text("as good as required", "达到要求")
_BAD_KEY = Text("too noisy, vanished or stalled", "噪声过大、变为零或更新停滞")
_REQUIRED_KEY = Text("required", "要求")
_BROKEN_KEY = Text("not finite", "非有限值")
_BEFORE_KEY = Text("without islands", "无孤岛时")


def gradient_panels(rehearsed: Mapping[str, Rehearsal]) -> list[Panel]:
    """Returns a panel for every recipe whose rehearsal had gradients."""
    panels = []
    for index, (recipe, rehearsal) in enumerate(rehearsed.items()):
        points = worst_first(rehearsal.last, rehearsal.first)
        if points:
            panels.append(_panel(f"gradients-{index}", recipe, points))
    return panels


def _panel(name: str, recipe: str, points: Sequence[GradientPoint]) -> Panel:
    wrong = sum(point.is_faulty for point in points)
    said = [(_FAULTY if wrong else _FINE).format(wrong=wrong, total=len(points))]
    if len(points) > MOST_PARAMETERS:
        said.append(_WORST.format(most=MOST_PARAMETERS))
    drawing = Drawing(name, gradients_figure(points), _SAYS.format(recipe=plain(recipe)), _keys(points))
    return Panel(plain(recipe), drawing, paragraph(said), (_table(points),))


def _keys(points: Sequence[GradientPoint]) -> tuple[Key, ...]:
    keys = [Key(str(_GOOD_KEY), "var(--accent)", "dot")]
    if any(point.is_faulty for point in points):
        keys.append(Key(str(_BAD_KEY), "var(--bad)", "dot"))
    keys.append(Key(str(_REQUIRED_KEY), "var(--ink)", "tick"))
    if any(point.before is not None for point in points):
        keys.append(Key(str(_BEFORE_KEY), "var(--plain-line)", "ring"))
    rows = [row for point in points for row in (point.row, point.before) if row is not None]
    if any(row.sqnr_db == -math.inf for row in rows):
        keys.append(Key(str(_BROKEN_KEY), "var(--ink)", "cross"))
    return tuple(keys)


_TITLE = Text("Gradients by parameter", "各参数的梯度")
_PARAMETER = Text("parameter", "参数")
_RATIO = Text("signal over noise", "信噪比")
_COSINE = Text("cosine", "余弦")
_ZEROS = Text("zeros", "零")
_STALLED = Text("stalled updates", "停滞的更新")
_OF_FLOAT32 = Text("{share} (float32 {float32})", "{share}（float32 {float32}）")


def _table(points: Sequence[GradientPoint]) -> NumbersTable:
    has_before = any(point.before is not None for point in points)
    before = [_BEFORE_KEY] if has_before else []
    headers = (_PARAMETER, _RATIO, *before, _REQUIRED_KEY, _COSINE, _ZEROS, _STALLED)
    rows = tuple(_cells(point, has_before) for point in points[:MOST_TABLE_ROWS])
    left_out = max(0, len(points) - MOST_TABLE_ROWS)
    return NumbersTable(str(_TITLE), tuple(map(str, headers)), rows, is_code=True, left_out=left_out)


def _cells(point: GradientPoint, has_before: bool) -> tuple[str, ...]:
    row = point.row
    before = [decibels(point.before.sqnr_db) if point.before else numbers.MISSING] if has_before else []
    return (
        row.parameter,
        decibels(row.sqnr_db),
        *before,
        decibels(row.required_db),
        numbers.MISSING if row.cosine is None else f"{row.cosine:.5f}",
        _beside(row.zero_share, row.float32_zero_share),
        _beside(row.stalled_share, row.float32_stalled_share),
    )


def _beside(share: float, float32: float) -> str:
    if share == float32:
        return numbers.percent(share)
    return _OF_FLOAT32.format(share=numbers.percent(share), float32=numbers.percent(float32))
