# SPDX-License-Identifier: Apache-2.0
"""The formats of matrix products and convolutions: as the program asks for them, and as the compiler runs them."""

from __future__ import annotations

import math
from typing import Any

import jax

from floatwise.census import Operator, OperatorCensus, compiled_operators, merged
from floatwise.jax.census.walk import over_arrays, trace, walk

__all__ = ["operator_dtypes", "traced_operators"]

# jax.lax: the primitives that matrix units compute.
_PRODUCTS = {"dot_general": "dot", "ragged_dot_general": "dot", "conv_general_dilated": "convolution"}


def operator_dtypes(fn: Any, *args: Any, compiled: bool = True, **kwargs: Any) -> OperatorCensus:
    """Returns the formats, shapes and places of all products of a function, such as a training step.

    Intent and fact differ: on CPUs XLA computes float16 products, and many bfloat16 ones, in float32.

    Args:
      fn: The function, jitted or not.
      *args: Its arguments; `jax.ShapeDtypeStruct` will do for an array.
      compiled: Whether to compile it, too, which takes as long as its first call. Default: True.
      **kwargs: More arguments of `fn`.
    """
    traced = traced_operators(trace(fn, args, kwargs).jaxpr)
    facts = None
    if compiled:
        of_arrays, arrays = over_arrays(fn, args, kwargs)
        facts = compiled_operators(jax.jit(of_arrays).lower(*arrays).compile().as_text() or "")
    return OperatorCensus(traced=traced, compiled=facts, backend=jax.default_backend())


def traced_operators(jaxpr: Any) -> tuple[Operator, ...]:
    """Returns the products of a jaxpr, alike ones counted together; one in `scan` counts once a turn."""
    rows = []
    for equation, line, turns in walk(jaxpr):
        name = _PRODUCTS.get(equation.primitive.name)
        if name is not None:
            operands = [variable.aval for variable in equation.invars[:2]]
            result = equation.outvars[0].aval
            rows.append(
                Operator(
                    name=name,
                    operands=tuple(str(aval.dtype) for aval in operands),
                    result=str(result.dtype),
                    shapes=tuple(tuple(aval.shape) for aval in operands),
                    result_shape=tuple(result.shape),
                    where=line,
                    multiplications=_multiplications(equation, operands, result),
                    count=turns,
                )
            )
    return merged(rows)


def _multiplications(equation: Any, operands: list[Any], result: Any) -> int:
    if equation.primitive.name == "conv_general_dilated":
        out_features = equation.params["dimension_numbers"].rhs_spec[0]
        return int(math.prod(result.shape) * math.prod(operands[1].shape) // max(operands[1].shape[out_features], 1))
    numbers = equation.params.get("dimension_numbers")
    if equation.primitive.name != "dot_general":
        return int(math.prod(operands[0].shape) * operands[1].shape[-1])
    ((contracted, _), _) = numbers
    return int(math.prod(result.shape) * math.prod(operands[0].shape[axis] for axis in contracted))
