# SPDX-License-Identifier: Apache-2.0
"""CPUs by instruction set, which is all that decides which formats are fast.

Sources: Intel Architecture Instruction Set Extensions Programming Reference; Intel 64 and IA-32 Architectures
Optimization Reference Manual (AMX: one 16 x 16 x 32 tile product of 16-bit values in 16 cycles, that is 1024
operations per cycle); Arm Architecture Reference Manual (BFMMLA multiplies 2 x 4 by 4 x 2).
"""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.language import Text

__all__ = ["ROWS"]

_INTEL = "Intel Architecture Instruction Set Extensions Programming Reference"
_ARM = "Arm Architecture Reference Manual for A-profile architecture"

# A row of an AMX tile, or a 512-bit register, holds 32 values of 16 bits.
_AMX = MatrixPath(None, 32, flops_per_cycle_per_core=1024)
_AVX512_BF16 = MatrixPath(None, 32, flops_per_cycle_per_core=64)
# Implementations issue one to four BFMMLA per cycle, on vectors of 128 to 256 bits.
_ARM_BF16 = MatrixPath(None, 4)

_EMULATED = Text(
    "16-bit formats are computed by converting to float32 and back: slower than float32, at half the memory.",
    "16 位格式要先转换为 float32 计算再转换回来：比 float32 慢，内存减半。",
)


def _cpu(
    suffix: str,
    name: str,
    architecture: str,
    source: str,
    matrix: Mapping[str, MatrixPath] | None = None,
    notes: Text | None = None,
) -> Device:
    return Device(
        id=f"cpu-{suffix}",
        name=name,
        vendor="cpu",
        kind="cpu",
        architecture=architecture,
        matrix=matrix or {},
        notes=notes,
        source=source,
    )


ROWS: tuple[Device, ...] = (
    _cpu("generic", "CPU", "any", "by definition: no instruction set is assumed", notes=_EMULATED),
    _cpu("avx2", "CPU with AVX2", "x86-64", _INTEL, notes=_EMULATED),
    _cpu("avx512", "CPU with AVX-512", "x86-64", _INTEL, notes=_EMULATED),
    _cpu(
        "avx512-bf16",
        "CPU with AVX-512 BF16",
        "x86-64",
        _INTEL,
        {"bfloat16": _AVX512_BF16},
        Text(
            "A dot product of bfloat16 pairs, twice the work of a float32 instruction; 64 operations per "
            "cycle are one 512-bit unit, and some parts have two. Subnormal inputs and outputs become zero.",
            "对成对的 bfloat16 做点积，每条指令的工作量是 float32 的两倍；每周期 64 次运算对应一个 512 位"
            "单元，有的型号有两个。次正规的输入和输出会被冲成零。",
        ),
    ),
    _cpu("amx-bf16", "CPU with AMX-BF16", "x86-64", _INTEL, {"bfloat16": _AMX}),
    _cpu("amx-fp16", "CPU with AMX-FP16", "x86-64", _INTEL, {"bfloat16": _AMX, "float16": _AMX}),
    _cpu("arm-neon", "Arm CPU with NEON", "AArch64", _ARM, notes=_EMULATED),
    _cpu("arm-bf16", "Arm CPU with BF16", "AArch64", _ARM, {"bfloat16": _ARM_BF16}),
)
