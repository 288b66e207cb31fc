# SPDX-License-Identifier: Apache-2.0
"""The products that a program asks XLA for, read from the text of its StableHLO."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from floatwise.census.operator import Operator, merged

__all__ = ["stablehlo_operators"]

# MLIR's names of element types (openxla.org/stablehlo/spec, types) and ours.
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "i8": "int8",
    "i32": "int32",
    "ui8": "uint8",
}

_FUNCTION = re.compile(r"^ *func\.func (?:public |private )?@([\w.\-$]+)\(", re.M)
_CALL = re.compile(r"\bcall @([\w.\-$]+)\(")
_PRODUCT = re.compile(
    r"stablehlo\.(dot_general|convolution)\b(.*?) : "
    r"\(tensor<([^>]*)>, tensor<([^>]*)>\) -> tensor<([^>]*)>"
)
_CONTRACTED = re.compile(r"contracting_dims = \[([\d, ]*)\]")
_KERNEL = re.compile(r"dim_numbers = \[[^\]]*\]x\[([^\]]*)\]")


def stablehlo_operators(text: str) -> tuple[Operator, ...]:
    """Returns the products of a program, alike ones counted together; one in a loop counts once.

    Args:
      text: What `jax.jit(fn).lower(*args).as_text()` gives. A function in it counts as often as it is called.
    """
    starts = [(found[1], found.start()) for found in _FUNCTION.finditer(text)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    bodies = {name: text[start:end] for (name, start), end in zip(starts, ends, strict=True)}
    times = _times(bodies)
    rows = (replace(row, count=times[name]) for name, body in bodies.items() for row in _products(body))
    return merged(row for row in rows if row.count)


def _times(bodies: dict[str, str]) -> Counter[str]:
    """Returns how often each function runs when `main` does."""
    times: Counter[str] = Counter()

    def run(name: str, count: int) -> None:
        times[name] += count
        for callee, calls in Counter(_CALL.findall(bodies.get(name, ""))).items():
            run(callee, count * calls)

    run("main", 1)
    return times


def _products(body: str) -> Iterator[Operator]:
    for name, attributes, *tensors in _PRODUCT.findall(body):
        (left, left_type), (right, right_type), (result, result_type) = map(_tensor, tensors)
        yield Operator(
            name="dot" if name == "dot_general" else "convolution",
            operands=(left_type, right_type),
            result=result_type,
            shapes=(left, right),
            result_shape=result,
            where="",
            multiplications=math.prod(result) * _inner(attributes, left, right),
            count=1,
        )


def _inner(attributes: str, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Returns how many multiplications an element of the result takes."""
    contracted = _CONTRACTED.search(attributes)
    if contracted:
        return math.prod(left[int(axis)] for axis in contracted[1].split(",") if axis.strip())
    kernel = _KERNEL.search(attributes)
    if kernel:
        labels = [label.strip() for label in kernel[1].split(",")]
        return math.prod(right) // max(right[labels.index("o")], 1)
    return 1


def _tensor(text: str) -> tuple[tuple[int, ...], str]:
    """Returns shape and type of `32x64xbf16`; a dimension that is not known counts as 1."""
    *sides, dtype = text.split("x")
    return tuple(int(side) if side.isdigit() else 1 for side in sides), _DTYPES.get(dtype, dtype)
