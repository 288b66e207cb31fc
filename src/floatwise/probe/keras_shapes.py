# SPDX-License-Identifier: Apache-2.0
"""Sides and FLOPs of Keras' products, by element of their result: of a traced function the batch may be unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ProductShape", "product_shape", "recurrent_shape"]


@dataclass(frozen=True)
class ProductShape:
    """A product of (m, k) by (k, n) matrices, whose m depends on the batch.

    Attributes:
      n: Columns of the result (output features or channels).
      k: Length of the inner products.
      element_flops: Forward FLOPs for each element of the result; one multiply-add is 2.
      width: Elements of the result in a row; 0 where they are `n`.
    """

    n: int
    k: int
    element_flops: float
    width: int = 0


def product_shape(operator: str, operands: Sequence[Any], output: Any, channels_first: bool) -> ProductShape | None:
    """Returns the shape of one call, or None where it cannot be told.

    Args:
      operator: Name of the backend's function (`matmul`, `einsum`, `conv`, …).
      operands: Its operands in the order they have by position; tensors or variables.
      output: What it returned.
      channels_first: Whether a convolution has its channels in the second axis.
    """
    shapes = [tuple(side or 0 for side in o.shape) for o in operands if _has_rank(o)]
    out = tuple(side or 0 for side in output.shape) if _has_rank(output) else ()
    if len(shapes) < 2:
        return None
    if operator == "matmul" or (operator in ("dot", "tensordot", "inner") and len(shapes[1]) <= 2):
        k = shapes[0][-1] or (shapes[1][-2] if len(shapes[1]) > 1 else shapes[1][0])
        return _product(out[-1] if out and len(shapes[1]) > 1 else 1, k)
    if operator == "einsum":
        return _einsum(operands, out)
    if operator == "dot_product_attention":
        length = shapes[1][1]
        return ProductShape(length, out[-1], 2.0 * length * (shapes[0][-1] + out[-1]) / max(out[-1], 1))
    if not operator.endswith("conv") and operator != "conv_transpose":
        return None
    kernel = shapes[1]
    if operator == "depthwise_conv":
        return _product(kernel[-1] * kernel[-2], math.prod(kernel[:-2]))
    if operator == "separable_conv" and len(shapes) > 2:
        depthwise, point = shapes[1], shapes[2]
        first = 2.0 * math.prod(depthwise) / max(point[-1], 1)
        return ProductShape(point[-1], point[-2], 2.0 * point[-2] + first)
    if operator == "conv_transpose":
        space = slice(2, None) if channels_first else slice(1, -1)
        share = math.prod(shapes[0][space]) / max(math.prod(out[space]), 1)
        k = kernel[-1]
        return ProductShape(kernel[-2], k, 2.0 * math.prod(kernel[:-2]) * k * share)
    return _product(kernel[-1], math.prod(kernel[:-1]))


def recurrent_shape(weights: Sequence[Any]) -> ProductShape | None:
    """Returns the shape of a recurrent layer, from its kernel, (inputs, gates × units), and its recurrent kernel."""
    matrices = [tuple(w.shape) for w in weights if len(w.shape) == 2]
    if len(matrices) < 2:
        return None
    (inputs, columns), (units, _) = matrices[:2]
    return ProductShape(columns, inputs, 2.0 * columns * (inputs + units) / units, units)


def _product(n: int, k: int) -> ProductShape:
    return ProductShape(n, k, 2.0 * k)


def _einsum(operands: Sequence[Any], out: tuple[int, ...]) -> ProductShape | None:
    text, *tensors = operands
    if not isinstance(text, str) or "..." in text or "->" not in text or len(tensors) != 2:
        return None
    inputs, _, result = text.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), tensors, strict=True):
        for label, side in zip(labels, operand.shape, strict=True):
            sizes[label] = max(side or 0, sizes.get(label, 1))
    return _product(out[-1] if out else 1, math.prod(size for label, size in sizes.items() if label not in result))


def _has_rank(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return shape is not None and getattr(shape, "rank", 0) is not None
