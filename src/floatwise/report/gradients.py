# SPDX-License-Identifier: Apache-2.0
"""How well each parameter's gradient survives a rehearsal, the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import GradientRow

__all__ = ["GradientPoint", "worst_first"]


@dataclass(frozen=True)
class GradientPoint:
    """One parameter's gradient with the plan's islands, and without them where that was rehearsed, too."""

    row: GradientRow
    before: GradientRow | None = None

    @property
    def is_faulty(self) -> bool:
        """Whether it is too noisy, has vanished, or its updates stall."""
        return self.row.is_wrong or self.row.has_vanished or self.row.stalls


def worst_first(last: Comparison, first: Comparison | None = None) -> list[GradientPoint]:
    """Returns the gradients that float32 has, those furthest under what is required first.

    Args:
      last: The rehearsal of the plan.
      first: The rehearsal without islands, where it is another.
    """
    before = _by_parameter(first.gradients if first is not None and first != last else ())
    points = [GradientPoint(row, before.get(row.parameter)) for row in last.gradients if row.sqnr_db is not None]
    return sorted(points, key=lambda point: _margin_db(point.row))


def _by_parameter(rows: Iterable[GradientRow]) -> dict[str, GradientRow]:
    return {row.parameter: row for row in rows}


def _margin_db(row: GradientRow) -> tuple[bool, float]:
    """Sorts what nothing is required of after everything else."""
    ratio = row.sqnr_db if row.sqnr_db is not None else math.inf
    return row.required_db is None, ratio - (row.required_db or 0.0)
