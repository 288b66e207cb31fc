# SPDX-License-Identifier: Apache-2.0
"""Products that the program asks for in 16 bits and the compiler runs in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatwise.census.finding import Finding
from floatwise.language import Text

if TYPE_CHECKING:
    from floatwise.census.products import OperatorCensus

__all__ = ["widened_products"]

_FORMATS = ("bfloat16", "float16", "float8_e4m3fn")

# Compilers add small products of their own, so shares are compared with some tolerance; chosen.
_TOLERANCE = 0.01

_TEXT = Text(
    "{asked:.0%} of the multiplications are asked for in {dtype}, but on this backend ({backend}) {run:.0%} run in it; "
    "the others are computed wider, after conversions that cost time. Measure a whole training step before choosing "
    "{dtype} here.",
    "程序要求 {asked:.0%} 的乘法用 {dtype} 计算，但在此后端（{backend}）上实际只有 {run:.0%}；其余先转换再以更宽的格式"
    "计算，转换本身也耗时。在此选用 {dtype} 之前，请先实测完整的训练步。",
)


def widened_products(census: OperatorCensus) -> tuple[Finding, ...]:
    """Returns a finding for each format that fewer multiplications run in than the program asks for.

    Shares are of multiplications, not of operators; library routines whose size is not known count as none.
    """
    if census.compiled is None:
        return ()
    found = []
    for dtype in _FORMATS:
        asked, run = census.share(dtype), census.share(dtype, compiled=True)
        if run < asked - _TOLERANCE:
            values = {"dtype": dtype, "backend": census.backend, "asked": asked, "run": run}
            found.append(Finding("products_widened", (), Text(_TEXT.en.format(**values), _TEXT.zh.format(**values))))
    return tuple(found)
