# SPDX-License-Identifier: Apache-2.0
"""A figure with everything that belongs to it, and the colours that all figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatwise.planner.decision import Decision
from floatwise.report.drawing import Drawing
from floatwise.report.figures.style import series_colours
from floatwise.report.tables import NumbersTable

__all__ = ["Panel", "recipe_colours"]


@dataclass(frozen=True)
class Panel:
    """A figure with its words and its numbers.

    Attributes:
      label: On its tab, where there are several.
      drawing: The figure.
      note: What to know when reading it.
      tables: All that the figure says, as numbers.
    """

    label: str
    drawing: Drawing
    note: str
    tables: tuple[NumbersTable, ...]


def recipe_colours(decisions: Sequence[Decision]) -> dict[str, str]:
    """Returns one colour for each recipe that was rehearsed or run, the same in all figures."""
    rehearsed = [v.recipe for decision in decisions for v in decision.verdicts if v.rehearsal is not None]
    measured = [decision.measured.recipe for decision in decisions if decision.measured is not None]
    return series_colours([*rehearsed, *measured])
