# SPDX-License-Identifier: Apache-2.0
"""FLOPs and dimensions of one call of a matrix operator, from its operands' shapes (one multiply-add is 2 FLOPs)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MatrixShape", "matrix_shape"]


@dataclass(frozen=True)
class MatrixShape:
    """A matrix operator seen as products of (m, k) by (k, n) matrices.

    Attributes:
      m: Rows of the result (batch and positions together).
      n: Columns of the result (output features or channels).
      k: Length of the inner products.
      flops: FLOPs of one forward call; a training step does about three times as many.
    """

    m: int
    n: int
    k: int
    flops: int


def matrix_shape(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> MatrixShape | None:
    """Returns the shape of one call, or None where it cannot be told from the operands."""
    shapes = [tuple(a.shape) for a in args if hasattr(a, "shape")]
    out = tuple(output.shape) if hasattr(output, "shape") else ()
    if operator == "linear" and len(shapes) > 1 and len(shapes[1]) == 2:
        features, inner = shapes[1]
        return _product(math.prod(shapes[0]) // max(inner, 1), features, inner)
    if operator.startswith("conv"):
        return _convolution(operator, shapes, out)
    if operator in ("matmul", "mm", "bmm", "mv"):
        return _product(math.prod(out[:-1]), out[-1] if out else 1, shapes[0][-1]) if shapes[0] else None
    if operator in ("addmm", "baddbmm") and len(shapes) > 2:
        return _product(math.prod(out[:-1]), out[-1], shapes[1][-1])
    if operator == "scaled_dot_product_attention":
        return _attention(shapes)
    if operator == "einsum":
        return _einsum(args, out)
    return _recurrent(args, shapes) if operator.split("_")[0] in ("lstm", "gru", "rnn") else None


def _product(m: int, n: int, k: int) -> MatrixShape:
    return MatrixShape(m, n, k, 2 * m * n * k)


def _convolution(operator: str, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> MatrixShape:
    weight = shapes[1]
    if "transpose" in operator:
        per_input = math.prod(weight[1:])
        return MatrixShape(
            math.prod(shapes[0]) // weight[0], per_input, weight[0], 2 * math.prod(shapes[0]) * per_input
        )
    inner = math.prod(weight[1:])
    return MatrixShape(math.prod(out) // weight[0], weight[0], inner, 2 * math.prod(out) * inner)


def _attention(shapes: Sequence[tuple[int, ...]]) -> MatrixShape:
    query, key = shapes[0], shapes[1]
    rows, length = math.prod(query[:-1]), key[-2]
    return MatrixShape(rows, length, query[-1], 4 * rows * length * query[-1])


def _einsum(args: Sequence[Any], out: tuple[int, ...]) -> MatrixShape | None:
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if not isinstance(args[0], str) or "..." in args[0] or len(operands) != 2:
        return None
    sizes: dict[str, int] = {}
    for labels, operand in zip(args[0].replace(" ", "").split("->")[0].split(","), operands, strict=True):
        sizes.update(zip(labels, operand.shape, strict=True))
    total = math.prod(sizes.values())
    result = max(math.prod(out), 1)
    return MatrixShape(result // max(out[-1] if out else 1, 1), out[-1] if out else 1, total // result, 2 * total)


def _recurrent(args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> MatrixShape | None:
    weights = [w for a in args if isinstance(a, (list, tuple)) for w in a if getattr(w, "ndim", 0) == 2]
    weights = weights or [a for a in args if getattr(a, "ndim", 0) == 2][2:]  # cells take their weights one by one
    if not weights or not shapes or not shapes[0]:
        return None
    rows = math.prod(shapes[0][:-1])
    total = sum(math.prod(w.shape) for w in weights if tuple(w.shape) != shapes[0])
    return MatrixShape(rows, weights[0].shape[0], weights[0].shape[1], 2 * rows * total)
