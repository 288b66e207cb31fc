# SPDX-License-Identifier: Apache-2.0
"""Google's TPUs; every figure is per chip, from the "System architecture" page of each version.

The alignment is the side of the systolic array: 128, and 256 from v6e on.
"""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.paths import float8_ocp, uniform
from floatwise.language import Text

__all__ = ["ROWS"]

_BFLOAT16_ONLY = Text(
    "The matrix unit multiplies bfloat16 and adds in float32: operands in float32 are rounded to bfloat16 as "
    "well, unless a higher precision is asked for, which costs several passes. float16 brings nothing here.",
    "矩阵单元以 bfloat16 相乘、以 float32 累加：float32 操作数也会先舍入到 bfloat16，除非要求更高精度"
    "（代价是多遍计算）。float16 在这里没有好处。",
)


def _tpu(
    version: str,
    bandwidth: float,
    memory: float,
    matrix: Mapping[str, MatrixPath],
    aliases: tuple[str, ...] = (),
    name: str | None = None,
) -> Device:
    return Device(
        id=f"google-tpu-{version}",
        name=name or f"Google TPU {version}",
        vendor="google",
        kind="tpu",
        architecture=f"TPU {version}",
        matrix=matrix,
        bandwidth_gb_per_second=bandwidth,
        memory_gib=(memory,),
        notes=_BFLOAT16_ONLY,
        aliases=(version, *aliases),
        source=f"Google Cloud TPU documentation, TPU {version}",
    )


def _float8_as_bfloat16(peak: float, alignment: int) -> dict[str, MatrixPath]:
    # Google lists one rate for both formats: float8 is converted on the way in.
    return uniform(alignment, bfloat16=peak) | float8_ocp(peak, alignment, native=False)


ROWS: tuple[Device, ...] = (
    _tpu("v2", 700, 16, uniform(128, bfloat16=46)),
    _tpu("v3", 900, 32, uniform(128, bfloat16=123)),
    _tpu("v4", 1228, 32, uniform(128, bfloat16=275)),
    _tpu("v5e", 819, 16, uniform(128, bfloat16=197), ("tpu v5 lite", "tpu v5lite", "v5litepod")),
    _tpu("v5p", 2765, 95, _float8_as_bfloat16(459, 128), ("tpu v5",)),
    _tpu("v6e", 1638, 32, _float8_as_bfloat16(918, 256), ("tpu v6 lite", "trillium")),
    _tpu(
        "v7x",
        7380,
        192,
        uniform(256, bfloat16=2307) | float8_ocp(4614, 256),
        ("tpu7x", "tpu v7", "ironwood"),
        "Google TPU7x",
    ),
)
