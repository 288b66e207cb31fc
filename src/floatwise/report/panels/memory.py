# SPDX-License-Identifier: Apache-2.0
"""Peak memory by what it consists of, predicted, and measured where it was."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report import numbers
from floatwise.report.drawing import Drawing, Key
from floatwise.report.figures import memory_figure
from floatwise.report.figures.memory import KIND_COLOURS
from floatwise.report.memory_bars import KINDS, MemoryBar, kind_bytes, memory_bars, memory_note
from floatwise.report.panels.panel import Panel
from floatwise.report.tables import NumbersTable

__all__ = ["memory_panel"]

_SAYS = Text("Predicted peak of tensor memory by kind: {sizes}.", "张量内存峰值（预测）按类别：{sizes}。")
_COMMA = Text(", ", "、")
_MEASURED_KEY = Text("measured", "实测")
_TITLE = Text("Memory by kind", "内存构成")
_RECIPE = Text("recipe", "配方")
_PEAK = Text("peak, predicted", "峰值（预测）")
_MEASURED = Text("peak, measured", "峰值（实测）")
_WHEN = Text("when", "时刻")


def memory_panel(decisions: Sequence[Decision]) -> Panel | None:
    """Returns the panel; None where nothing was predicted."""
    bars = memory_bars(decisions)
    if not bars:
        return None
    sizes = str(_COMMA).join(f"{bar.name} {numbers.bytes_text(bar.memory.peak_bytes)}" for bar in bars)
    keys = [Key(str(KINDS[kind]), KIND_COLOURS[kind]) for kind in _kinds(bars)]
    if any(bar.measured_bytes is not None for bar in bars):
        keys.append(Key(str(_MEASURED_KEY), "var(--ink)", "diamond"))
    drawing = Drawing("memory", memory_figure(bars), _SAYS.format(sizes=sizes), tuple(keys))
    return Panel("", drawing, memory_note(bars), (_table(bars),))


def _kinds(bars: Sequence[MemoryBar]) -> list[str]:
    sizes = [kind_bytes(bar.memory) for bar in bars]
    return [kind for kind in KINDS if any(row[kind] for row in sizes)]


def _table(bars: Sequence[MemoryBar]) -> NumbersTable:
    kinds = _kinds(bars)
    has_measured = any(bar.measured_bytes is not None for bar in bars)
    measured = [str(_MEASURED)] if has_measured else []
    headers = (str(_RECIPE), str(_PEAK), *measured, *(str(KINDS[kind]) for kind in kinds), str(_WHEN))
    rows = []
    for bar in bars:
        sizes = kind_bytes(bar.memory)
        seen = [numbers.bytes_text(bar.measured_bytes)] if has_measured else []
        cells = (numbers.bytes_text(sizes[kind]) for kind in kinds)
        rows.append((bar.name, numbers.bytes_text(bar.memory.peak_bytes), *seen, *cells, bar.phase))
    return NumbersTable(str(_TITLE), headers, tuple(rows))
