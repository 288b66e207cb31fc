# SPDX-License-Identifier: Apache-2.0
"""The numbers behind a figure as a table, for reading, copying, and pages without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from floatwise.language import Text

__all__ = ["MOST_TABLE_ROWS", "NumbersTable", "evenly"]

#: Longer tables are no longer read (convention).
MOST_TABLE_ROWS = 200

_MORE = Text("{n} more rows are left out.", "另有 {n} 行未列出。")

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class NumbersTable:
    """A table whose first column names the row and whose others hold numbers.

    Attributes:
      title: What it lists.
      headers: One for each column.
      rows: Cells as text.
      is_code: Whether the first column holds names from the script.
      left_out: Rows that are not shown.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_code: bool = False
    left_out: int = 0

    @property
    def note(self) -> str:
        """Says what is left out; empty when nothing is."""
        return _MORE.format(n=self.left_out) if self.left_out else ""


def evenly(rows: Sequence[_Row], most: int) -> list[_Row]:
    """Returns at most so many rows, evenly spaced, the last one among them."""
    if len(rows) <= most:
        return list(rows)
    last = len(rows) - 1
    return [rows[round(index * last / (most - 1))] for index in range(most)]
