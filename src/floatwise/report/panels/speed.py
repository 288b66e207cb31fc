# SPDX-License-Identifier: Apache-2.0
"""Speed against float32, predicted, and measured where it was."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report import numbers
from floatwise.report.drawing import Drawing, Key
from floatwise.report.figures import speed_figure
from floatwise.report.panels.panel import Panel
from floatwise.report.speed_rows import SpeedRow, speed_note, speed_rows
from floatwise.report.tables import NumbersTable

__all__ = ["speed_panel"]

_SAYS = Text("Speed against float32: {ratios}.", "相对 float32 的速度：{ratios}。")
_COMMA = Text(", ", "、")
_PREDICTED_KEY = Text("predicted, with its range", "预测及其区间")
_MEASURED_KEY = Text("measured, with the middle half of neighbouring pairs", "实测及相邻步骤比值的四分位区间")
_TITLE = Text("Speed", "速度数值")
_RECIPE = Text("recipe", "配方")
_PREDICTED = Text("predicted", "预测")
_RANGE = Text("range", "区间")
_MEASURED = Text("measured", "实测")


def speed_panel(decisions: Sequence[Decision]) -> Panel | None:
    """Returns the panel; None where speed was neither predicted nor measured."""
    rows = speed_rows(decisions)
    if not rows:
        return None
    ratios = str(_COMMA).join(f"{row.name} {_triple(row.measured or row.predicted)[0]}" for row in rows)
    keys = []
    if any(row.predicted for row in rows):
        keys.append(Key(str(_PREDICTED_KEY), "var(--accent)", "dot"))
    if any(row.measured for row in rows):
        keys.append(Key(str(_MEASURED_KEY), "var(--ink)", "diamond"))
    drawing = Drawing("speed", speed_figure(rows), _SAYS.format(ratios=ratios), tuple(keys))
    return Panel("", drawing, speed_note(decisions), (_table(rows),))


def _table(rows: Sequence[SpeedRow]) -> NumbersTable:
    headers = tuple(map(str, (_RECIPE, _PREDICTED, _RANGE, _MEASURED, _RANGE)))
    cells = tuple((row.name, *_triple(row.predicted), *_triple(row.measured)) for row in rows)
    return NumbersTable(str(_TITLE), headers, cells)


def _triple(triple: tuple[float, float, float] | None) -> tuple[str, str]:
    if triple is None:
        return numbers.MISSING, numbers.MISSING
    low, ratio, high = triple
    return numbers.ratio(ratio), f"{numbers.factor(low)}–{numbers.factor(high)}×"
