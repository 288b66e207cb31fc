# SPDX-License-Identifier: Apache-2.0
"""Shapes and names of matrix products and convolutions in traced JAX programs."""

from __future__ import annotations

import math
from typing import Any

from floatwise.jax.script.rewriting import Equation
from floatwise.probe.flops import MatrixShape

__all__ = ["PRODUCTS", "product_name", "product_shape"]

#: Primitives that matrix units compute (jax.lax).
PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})


def product_shape(equation: Equation) -> MatrixShape | None:
    """Returns the shape of one call, as `floatwise.probe.flops` has it for PyTorch; None for a ragged one."""
    left, right = equation.inputs[:2]
    (result,) = equation.outputs
    if equation.primitive == "dot_general":
        return _dot(equation, tuple(left.shape), tuple(right.shape))
    if equation.primitive != "conv_general_dilated":
        return None
    weight, numbers = tuple(right.shape), equation.params["dimension_numbers"]
    features = weight[numbers.rhs_spec[0]]
    if _is_transposed(equation):
        inner = left.shape[numbers.lhs_spec[1]]
        rows, columns = math.prod(left.shape) // inner, math.prod(weight) // inner
        return MatrixShape(rows, columns, inner, 2 * rows * columns * inner)
    inner = math.prod(weight) // max(features, 1)
    return MatrixShape(math.prod(result.shape) // features, features, inner, 2 * math.prod(result.shape) * inner)


def product_name(equation: Equation) -> str:
    """Returns the operator's name as PyTorch's probe has it."""
    if equation.primitive == "conv_general_dilated":
        return f"conv{'_transpose' if _is_transposed(equation) else ''}{len(equation.inputs[0].shape) - 2}d"
    if any(path is not None and "." in path for path in equation.parameters[:2]):
        return "linear"
    return "einsum" if any(name in ("jax:einsum", "jax:_einsum") for name in equation.functions) else "matmul"


def _dot(equation: Equation, left: tuple[int, ...], right: tuple[int, ...]) -> MatrixShape:
    ((left_inner, right_inner), (left_batch, right_batch)) = equation.params["dimension_numbers"]
    batch, inner = math.prod(left[i] for i in left_batch), math.prod(left[i] for i in left_inner)
    m = math.prod(side for i, side in enumerate(left) if i not in (*left_inner, *left_batch))
    n = math.prod(side for i, side in enumerate(right) if i not in (*right_inner, *right_batch))
    if equation.parameters[0] is not None and equation.parameters[1] is None:
        m, n = n, m  # the weight stands first, as in Equinox: its rows are the features
    return MatrixShape(batch * m, n, inner, 2 * batch * m * n * inner)


def _is_transposed(equation: Equation) -> bool:
    dilation: Any = equation.params["lhs_dilation"]
    return any(step > 1 for step in dilation)
