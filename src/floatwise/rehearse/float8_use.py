# SPDX-License-Identifier: Apache-2.0
"""What of a training multiplied in float8, kept when its layers are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_cast import CastCounts
from floatwise.rehearse.float8_eligible import LeftOut

__all__ = ["Float8Use"]


@dataclass(frozen=True)
class Float8Use:
    """The linear layers of a training under a float8 plan.

    Attributes:
      converted: Paths of those that multiply in float8.
      left_out: The others and why.
      uneven_rows: As `Float8Linears.uneven_rows`.
      counts: What casts have lost, by path and role (`input`, `weight`, `grad_output`).
    """

    converted: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    uneven_rows: Mapping[str, int] = field(repr=False)
    counts: Mapping[tuple[str, str], CastCounts] = field(repr=False)

    @classmethod
    def of(cls, parts: Iterable[Float8Linears]) -> Float8Use:
        """Returns what several conversions have seen up to now, of models that a script runs apart."""
        parts = tuple(parts)
        return cls(
            converted=tuple(path for part in parts for path in part.converted),
            left_out=tuple(layer for part in parts for layer in part.left_out),
            uneven_rows={path: rows for part in parts for path, rows in part.uneven_rows().items()},
            counts={key: counts for part in parts for key, counts in part.counts().items()},
        )
