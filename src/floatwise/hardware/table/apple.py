# SPDX-License-Identifier: Apache-2.0
"""The GPUs of Apple silicon. Apple publishes memory bandwidth for all, arithmetic rates for the first few."""

from __future__ import annotations

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.remarks import SHARED_MEMORY, join
from floatwise.language import Text

__all__ = ["ROWS"]

_NOTES = Text(
    "No separate matrix unit in the GPU before M5. PyTorch's MPS backend computes in float16 and, from "
    "macOS 14, in bfloat16; what is gained is memory and bandwidth.",
    "M5 之前 GPU 没有独立的矩阵单元。PyTorch 的 MPS 后端支持 float16，自 macOS 14 起支持 bfloat16；收益是内存和带宽。",
)
_M5_NOTES = Text(
    "Each GPU core has a matrix unit for float16; Apple publishes no rate, and only code written for Metal 4 "
    "tensor operations reaches it.",
    "每个 GPU 核心都有 float16 矩阵单元；Apple 未公布速率，且只有使用 Metal 4 张量操作的代码才能用上。",
)
_M5_MATRIX = {
    # Tiles of 32 or more reached the full rate in Zakharko's measurements of the same unit in the A19 (2025).
    "float16": MatrixPath(None, 32)
}


def _chip(
    model: str, bandwidth: float, memory: tuple[float, ...], float32: float | None = None, m5: bool = False
) -> Device:
    return Device(
        id=f"apple-{model.casefold().replace(' ', '-')}",
        name=f"Apple {model}",
        vendor="apple",
        kind="gpu",
        architecture=f"Apple {model.split(' ')[0]}",
        matrix=_M5_MATRIX if m5 else {},
        vector_tflops={} if float32 is None else {"float32": float32},
        bandwidth_gb_per_second=bandwidth,
        memory_gib=memory,
        notes=join(_M5_NOTES if m5 else _NOTES, SHARED_MEMORY),
        source=f"Apple newsroom announcement and technical specifications of {model}",
    )


ROWS: tuple[Device, ...] = (
    _chip("M1", 68, (8, 16), 2.6),
    _chip("M1 Pro", 200, (16, 32), 5.2),
    _chip("M1 Max", 400, (32, 64), 10.4),
    _chip("M1 Ultra", 800, (64, 128), 21),
    _chip("M2", 100, (8, 16, 24), 3.6),
    _chip("M2 Pro", 200, (16, 32)),
    _chip("M2 Max", 400, (32, 64, 96)),
    _chip("M2 Ultra", 800, (64, 128, 192)),
    _chip("M3", 100, (8, 16, 24)),
    _chip("M3 Pro", 150, (18, 36)),
    _chip("M3 Max", 400, (36, 48, 64, 96, 128)),
    _chip("M3 Ultra", 819, (96, 256, 512)),
    _chip("M4", 120, (16, 24, 32)),
    _chip("M4 Pro", 273, (24, 48, 64)),
    _chip("M4 Max", 546, (36, 48, 64, 128)),
    _chip("M5", 153, (16, 24, 32), m5=True),
)
