# SPDX-License-Identifier: Apache-2.0
"""A matrix product or convolution, with its formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["Operator", "formats", "merged", "share", "to_message"]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A product, or several that are alike.

    Attributes:
      name: `dot`, `convolution`, or of a compiled program also the library routine it calls.
      operands: The formats of its two operands.
      result: The format of its result.
      shapes: The shapes of its operands.
      result_shape: The shape of its result.
      where: `file:line` in the user's code; empty when it is not known.
      multiplications: How many multiplications one of them takes; 0 when it is not known.
      count: How many there are.
    """

    name: str
    operands: tuple[str, ...]
    result: str
    shapes: tuple[tuple[int, ...], ...]
    result_shape: tuple[int, ...]
    where: str
    multiplications: int
    count: int

    def __str__(self) -> str:
        operands = " * ".join(f"{dtype}{list(shape)}" for dtype, shape in zip(self.operands, self.shapes, strict=True))
        where = f"  ({self.where})" if self.where else ""
        return f"{self.count} x {self.name}: {operands} -> {self.result}{list(self.result_shape)}{where}"


def formats(rows: Iterable[Operator]) -> dict[str, int]:
    """Returns how many products there are by the formats of their operands, such as `bfloat16*bfloat16`."""
    counted: Counter[str] = Counter()
    for row in rows:
        counted["*".join(row.operands)] += row.count
    return dict(counted)


def share(rows: Iterable[Operator], dtype: str) -> float:
    """Returns the share of multiplications whose operands are all of a format, from 0 to 1; 0 without products."""
    known = list(rows)
    whole = sum(row.multiplications * row.count for row in known)
    own = sum(row.multiplications * row.count for row in known if set(row.operands) == {dtype})
    return own / whole if whole else 0.0


def to_message(rows: Iterable[Operator]) -> dict[str, dict[str, float]]:
    """Returns for each format of the operands the number of products and their share of the multiplications, as JSON.

    Shares are of the products whose size is known.
    """
    known = list(rows)
    whole = sum(row.multiplications * row.count for row in known)
    told: dict[str, dict[str, float]] = {}
    for row in known:
        mine = told.setdefault(" × ".join(dict.fromkeys(row.operands)), {"count": 0, "share": 0.0})
        mine["count"] += row.count
        mine["share"] += row.multiplications * row.count / whole if whole else 0.0
    return told


def merged(rows: Iterable[Operator]) -> tuple[Operator, ...]:
    """Returns rows that are alike as one, counted together, in the order of their first."""
    counts: Counter[Operator] = Counter()
    for row in rows:
        counts[replace(row, count=0)] += row.count
    return tuple(replace(row, count=count) for row, count in counts.items())
