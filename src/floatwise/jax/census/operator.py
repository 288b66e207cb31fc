# SPDX-License-Identifier: Apache-2.0
"""A matrix product or convolution, with its formats."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Operator"]


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
