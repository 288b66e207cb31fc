# SPDX-License-Identifier: Apache-2.0
"""The promotions in a traced program: 16-bit values that are widened to meet something wider.

A jaxpr does not say why a value was converted, and the frames inside jax.numpy's operations are not kept. So a
conversion counts when it was not written out (no `astype` in its frames) and its result meets a wide value from
elsewhere: a constant, an argument, or anything that does not itself come from conversions of the same operation. A
variance, which converts once and meets its own mean, does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from floatwise.jax.census.walk import call_names, walk_jaxprs

__all__ = ["BRINGS_BACK", "SIXTEEN_BITS", "WIDER", "Promotion", "promotions"]

SIXTEEN_BITS = ("bfloat16", "float16")
WIDER = ("float32", "float64")

# Functions of jax and jax.numpy that convert because they were asked to.
_WRITTEN_OUT = re.compile(r"[:.](?:_?astype|convert_element_type|asarray|array|_ScalarMeta\.__call__)$")
# Of Flax, which asks for what it has promoted to before (flax/linen/dtypes.py, flax/nnx/nn/dtypes.py).
_PROMOTES = re.compile(r"[:.]promote_dtype$")
# Of optax, which brings the sum of a weight and its update back into the weight's format (optax/_src/update.py).
BRINGS_BACK = "optax:apply_updates"

# Primitives that only change the shape.
_SHAPES = frozenset({"broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev"})

_Site = tuple[str, tuple[str, ...]]


class Promotion(NamedTuple):
    """A promotion.

    Attributes:
      where: `file:line` in the user's code; empty when it is not known.
      before: The format of the value.
      after: The format that it gets.
      shape: Its shape.
    """

    where: str
    before: str
    after: str
    shape: tuple[int, ...]


def promotions(jaxpr: Any) -> Iterator[Promotion]:
    """Yields the promotions of a jaxpr and of those inside it."""
    for level, lines in walk_jaxprs(jaxpr):
        yield from _of_level(level, lines)


def _of_level(jaxpr: Any, lines: list[str]) -> Iterator[Promotion]:
    # The operations whose conversions a wide value comes from; None for one that comes from elsewhere.
    origins: dict[Any, frozenset[_Site] | None] = {}
    converted: dict[Any, tuple[_Site, Any]] = {}
    found: dict[int, Promotion] = {}
    for equation, line in zip(jaxpr.eqns, lines, strict=True):
        operands = [variable for variable in equation.invars if _dtype(variable) in WIDER]
        for operand in operands:
            if _key(operand) not in converted or equation.primitive.name in _SHAPES:
                continue
            site, conversion = converted[_key(operand)]
            others = [_key(other) for other in operands if other is not operand]
            from_elsewhere = any(origins.get(other) != frozenset({site}) for other in others)
            twins = [converted[other][1] for other in others if other in converted]
            if from_elsewhere or any(_dtype(twin.invars[0]) != _dtype(conversion.invars[0]) for twin in twins):
                found[id(conversion)] = _promotion(conversion, site[0])
        if equation.primitive.name == "dot_general":
            narrow = [variable for variable in equation.invars if _dtype(variable) in SIXTEEN_BITS]
            if narrow and operands:
                found[id(equation)] = Promotion(
                    line, _dtype(narrow[0]), _dtype(operands[0]), tuple(narrow[0].aval.shape)
                )
        for result in equation.outvars:
            if _dtype(result) not in WIDER:
                continue
            if _is_conversion(equation):
                silent = _is_silent(equation)
                site = (line, tuple(call_names(equation)))
                origins[result] = frozenset({site}) if silent else None
                if silent:
                    converted[result] = (site, equation)
            else:
                sources = [origins.get(_key(v)) for v in operands if not hasattr(v, "val")]
                known = [source for source in sources if source is not None]
                origins[result] = frozenset().union(*known) if known and len(known) == len(sources) else None
                if equation.primitive.name in _SHAPES and operands and _key(operands[0]) in converted:
                    converted[result] = converted[_key(operands[0])]
    yield from found.values()


def _promotion(conversion: Any, where: str) -> Promotion:
    before, after = conversion.invars[0], conversion.outvars[0]
    return Promotion(where, _dtype(before), _dtype(after), tuple(before.aval.shape))


def _is_conversion(equation: Any) -> bool:
    return equation.primitive.name == "convert_element_type" and _dtype(equation.invars[0]) in SIXTEEN_BITS


def _is_silent(equation: Any) -> bool:
    names = call_names(equation)
    if any(name.startswith(BRINGS_BACK) for name in names):
        return False
    return any(map(_PROMOTES.search, names)) or not any(map(_WRITTEN_OUT.search, names))


def _key(variable: Any) -> Any:
    """Returns what stands for a variable in a dictionary: literals cannot be hashed, and come from nowhere."""
    return None if hasattr(variable, "val") else variable


def _dtype(variable: Any) -> str:
    return str(getattr(variable.aval, "dtype", ""))
