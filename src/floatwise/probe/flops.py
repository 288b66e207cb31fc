# SPDX-License-Identifier: Apache-2.0
"""FLOPs and dimensions of one call of a matrix operator, from its operands' shapes (one multiply-add is 2 FLOPs)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MatrixShape", "matrix_shape"]


#: Operators that add to their first operand.
_ADDED_TO = frozenset({"addmm", "addmv", "baddbmm", "addbmm"})
_PRODUCTS = _ADDED_TO | {"matmul", "mm", "bmm", "mv"}
#: Tensor operands that an operator has at least; others have two.
_OPERANDS = {**dict.fromkeys(_ADDED_TO, 3), "bilinear": 3, "scaled_dot_product_attention": 3}


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


def matrix_shape(operator: str, args: Sequence[Any], output: Any) -> MatrixShape | None:
    """Returns the shape of one call, or None where it cannot be told from the operands.

    Args:
      operator: One of the names in `floatwise.tap.operators.MATRIX_OPERATORS`.
      args: Its operands in the order they have by position.
      output: What it returned.
    """
    shapes = [tuple(a.shape) for a in args if hasattr(a, "shape")]
    out = tuple(output.shape) if hasattr(output, "shape") else ()
    if not all(type(side) is int for shape in (*shapes, out) for side in shape):
        return None  # ragged: a nested tensor's
    if operator == "einsum":
        return _einsum(args, out)
    if operator.split("_")[0] in ("lstm", "gru", "rnn"):
        return _recurrent(operator, args, shapes)
    if len(shapes) < _OPERANDS.get(operator, 2):
        return None
    if operator.startswith("conv"):
        return _convolution(operator, shapes, out)
    if operator == "scaled_dot_product_attention":
        return _attention(shapes)
    if operator == "linear":
        return _linear(shapes)
    if operator == "bilinear":
        rows, (features, left, right) = math.prod(out[:-1]), shapes[2]
        return _product(rows * left, features, right)
    if operator not in _PRODUCTS:
        return None
    first = shapes[1] if operator in _ADDED_TO else shapes[0]
    if operator in ("mv", "addmv"):
        return _product(out[0], 1, first[-1])
    rows = math.prod(out[:-1]) * (first[0] if operator == "addbmm" else 1)
    return _product(rows, out[-1] if out else 1, first[-1])


def _product(m: int, n: int, k: int) -> MatrixShape:
    return MatrixShape(m, n, k, 2 * m * n * k)


def _linear(shapes: Sequence[tuple[int, ...]]) -> MatrixShape:
    weight = shapes[1]
    features, inner = weight if len(weight) == 2 else (1, weight[0])
    return _product(math.prod(shapes[0]) // max(inner, 1), features, inner)


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
    query, key, value = shapes[:3]
    rows, length = math.prod(query[:-1]), key[-2]
    return MatrixShape(rows, length, query[-1], 2 * rows * length * (query[-1] + value[-1]))


def _einsum(args: Sequence[Any], out: tuple[int, ...]) -> MatrixShape | None:
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if not isinstance(args[0], str) or "..." in args[0] or len(operands) != 2:
        return None
    sizes: dict[str, int] = {}
    for labels, operand in zip(args[0].replace(" ", "").split("->")[0].split(","), operands, strict=True):
        for label, side in zip(labels, operand.shape, strict=True):
            sizes[label] = max(side, sizes.get(label, 1))
    total = math.prod(sizes.values())
    result = max(math.prod(out), 1)
    return MatrixShape(result // max(out[-1] if out else 1, 1), out[-1] if out else 1, total // result, 2 * total)


def _recurrent(operator: str, args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> MatrixShape | None:
    # Cells take their two weights one by one, layers take all of theirs in a list.
    lists = [args[2:4]] if operator.endswith("_cell") else [a for a in args if isinstance(a, (list, tuple))]
    weights = [tuple(w.shape) for each in lists for w in each if getattr(w, "ndim", 0) == 2]
    if not weights or not shapes or not shapes[0]:
        return None
    rows, (n, k) = math.prod(shapes[0][:-1]), weights[0]
    return MatrixShape(rows, n, k, 2 * rows * sum(map(math.prod, weights)))
