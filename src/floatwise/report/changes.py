# SPDX-License-Identifier: Apache-2.0
"""What differs between two plans or configurations, and what that does to training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text as Line

from floatwise.language import Text
from floatwise.plan import Change
from floatwise.report.numbers import number
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST

__all__ = ["changes_to_json", "render_changes"]

_EQUAL = Text("{a} and {b} train alike.", "{a} 与 {b} 的训练方式相同。")
_CHANGES = Text("From {a} to {b}", "从 {a} 到 {b}")
_NOTHING = Text("(none)", "（无）")


def render_changes(changes: Iterable[Change], a: str, b: str, console: Console) -> None:
    """Prints the changes from `a` to `b`, names for the reader."""
    width = min(console.width, WIDEST)
    rows = list(changes)
    title = (_CHANGES if rows else _EQUAL).format(a=a, b=b)
    console.print(Line(plain(title), style="bold"), width=width, highlight=False)
    if rows:
        console.print(Padding(Group(*map(_row, rows)), (0, 0, 0, 2)), width=width, highlight=False)


def changes_to_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Returns the changes as JSON values, meanings in the current language."""
    return [
        {"path": c.path, "before": c.before, "after": c.after, "meaning": str(c.meaning) if c.meaning else None}
        for c in changes
    ]


def _row(change: Change) -> RenderableType:
    values = Line.assemble(
        (plain(change.path), "cyan"), "  ", _shown(change.before), " → ", (_shown(change.after), "bold")
    )
    if change.meaning is None:
        return values
    return Group(values, Padding(Line(plain(change.meaning), style="dim"), (0, 0, 0, 2)))


def _shown(value: Any) -> str:
    if value is None or value == "":
        return str(_NOTHING)
    return number(value) if isinstance(value, float) else plain(value)
