# SPDX-License-Identifier: Apache-2.0
"""The formats of matrix products and convolutions: as the program asks for them, and as the compiler runs them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax

from floatwise.census import Operator, compiled_operators, formats, share
from floatwise.jax.census.finding import Finding
from floatwise.jax.census.walk import over_arrays, trace, walk
from floatwise.jax.census.widened import widened_products

__all__ = ["OperatorCensus", "operator_dtypes"]

# jax.lax: the primitives that matrix units compute.
_PRODUCTS = {"dot_general": "dot", "ragged_dot_general": "dot", "conv_general_dilated": "convolution"}


@dataclass(frozen=True, kw_only=True)
class OperatorCensus:
    """The products of a function.

    Attributes:
      traced: What the program asks for, from its jaxpr; a product inside `scan` counts once a turn.
      compiled: What runs on this backend, from XLA's optimised program; a product in a loop counts once. None when it
        was not compiled.
      backend: For which backend: `cpu`, `gpu`, `tpu`.
    """

    traced: tuple[Operator, ...]
    compiled: tuple[Operator, ...] | None
    backend: str

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What to know about formats that are asked for and not run; empty when nothing was compiled."""
        return widened_products(self)

    def formats(self, compiled: bool = False) -> dict[str, int]:
        """Returns how many products there are by the formats of their operands, such as `bfloat16*bfloat16`."""
        return formats((self.compiled or ()) if compiled else self.traced)

    def share(self, dtype: str, compiled: bool = False) -> float:
        """Returns the share of multiplications whose operands are all of a format, from 0 to 1; 0 without products."""
        return share((self.compiled or ()) if compiled else self.traced, dtype)


def operator_dtypes(fn: Any, *args: Any, compiled: bool = True, **kwargs: Any) -> OperatorCensus:
    """Returns the formats, shapes and places of all products of a function, such as a training step.

    Intent and fact differ: on CPUs XLA computes float16 products, and many bfloat16 ones, in float32.

    Args:
      fn: The function, jitted or not.
      *args: Its arguments; `jax.ShapeDtypeStruct` will do for an array.
      compiled: Whether to compile it, too, which takes as long as its first call. Default: True.
      **kwargs: More arguments of `fn`.
    """
    rows = list(_traced(trace(fn, args, kwargs).jaxpr))
    facts = None
    if compiled:
        of_arrays, arrays = over_arrays(fn, args, kwargs)
        facts = compiled_operators(jax.jit(of_arrays).lower(*arrays).compile().as_text() or "")
    return OperatorCensus(traced=_merged(rows), compiled=facts, backend=jax.default_backend())


def _traced(jaxpr: Any) -> list[Operator]:
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
    return rows


def _multiplications(equation: Any, operands: list[Any], result: Any) -> int:
    if equation.primitive.name == "conv_general_dilated":
        out_features = equation.params["dimension_numbers"].rhs_spec[0]
        return int(math.prod(result.shape) * math.prod(operands[1].shape) // max(operands[1].shape[out_features], 1))
    numbers = equation.params.get("dimension_numbers")
    if equation.primitive.name != "dot_general":
        return int(math.prod(operands[0].shape) * operands[1].shape[-1])
    ((contracted, _), _) = numbers
    return int(math.prod(result.shape) * math.prod(operands[0].shape[axis] for axis in contracted))


def _merged(rows: list[Operator]) -> tuple[Operator, ...]:
    def same(row: Operator) -> Operator:
        return replace(row, count=0)

    ordered = list(dict.fromkeys(map(same, rows)))
    counts: Counter[Operator] = Counter()
    for row in rows:
        counts[same(row)] += row.count
    return tuple(replace(row, count=counts[row]) for row in ordered)
