# SPDX-License-Identifier: Apache-2.0
"""Which number formats a plan may name, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field

from floatwise.errors import UnknownNameError
from floatwise.formats import find_format

__all__ = [
    "COMPUTE_FORMATS",
    "FLOAT8_FORMATS",
    "SIXTEEN_BIT_FORMATS",
    "STORE_FORMATS",
    "ComputeDtype",
    "StoreDtype",
]

SIXTEEN_BIT_FORMATS = ("bfloat16", "float16")
STORE_FORMATS = ("float32", *SIXTEEN_BIT_FORMATS)
"""Formats of tensors in memory. float8 is only ever an operand of a matrix product, cast just before it."""

FLOAT8_FORMATS = ("float8_e4m3fn", "float8_e4m3fnuz")
"""Operand formats of float8 products; `fnuz` is that of AMD's MI300 (formats table).

Gradients take the e5m2 of the same family where the scaling asks for it, so no plan names e5m2.
"""

COMPUTE_FORMATS = (*STORE_FORMATS, *FLOAT8_FORMATS)

_INSTEAD = {
    "tfloat32": 'it is how float32 products are computed: write "float32" here and float32_matmul = "tf32"',
    "float64": 'nothing in a plan is wider than float32: write "float32"',
    # Micikevicius et al. 2022, arXiv 2209.05433: weights and activations take e4m3, gradients e5m2.
    "float8_e5m2": 'its two mantissa bits serve gradients only, which the scaling sees to: write "float8_e4m3fn"',
    "float8_e5m2fnuz": 'its two mantissa bits serve gradients only, which the scaling sees to: write "float8_e4m3fnuz"',
}


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in allowed:
            expected = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise ValueError(f"got {name!r}, expected {expected}; {_instead(name, allowed)}")
        return name

    return check


def _instead(name: str, allowed: tuple[str, ...]) -> str:
    try:
        canonical = find_format(name).name
    except UnknownNameError as error:
        near = [n for n in error.nearest if n in allowed]
        return f"did you mean {' or '.join(near)}?" if near else "there is no such format"
    if canonical in allowed:
        return f'write "{canonical}"'
    if canonical in FLOAT8_FORMATS:
        return 'float8 is cast just before a matrix product and never kept: write "bfloat16"'
    return _INSTEAD.get(canonical, "no runtime trains in that format here")


StoreDtype = Annotated[
    str, AfterValidator(_one_of(STORE_FORMATS)), Field(json_schema_extra={"enum": list(STORE_FORMATS)})
]
ComputeDtype = Annotated[
    str, AfterValidator(_one_of(COMPUTE_FORMATS)), Field(json_schema_extra={"enum": list(COMPUTE_FORMATS)})
]
