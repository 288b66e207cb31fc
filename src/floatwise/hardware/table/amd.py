# SPDX-License-Identifier: Apache-2.0
"""AMD's Instinct accelerators and Radeon cards; peaks are AMD's dense "matrix" figures."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.paths import float8_ocp, uniform
from floatwise.hardware.table.remarks import join
from floatwise.language import Text

__all__ = ["ROWS"]

_TWO_DIES = Text(
    "One module holds two dies; each shows as a GPU of its own with half the memory and half these rates.",
    "一个模块含两颗芯片，各显示为一块 GPU，显存和速率均为表中的一半。",
)
_FLUSHES = Text(
    "16-bit matrix instructions flush subnormal inputs and outputs to zero (MIOpen documentation), so "
    "float16 gradients underflow below 2^-14, not 2^-24: keep the loss scale high.",
    "16 位矩阵指令会把次正规的输入和输出冲成零（MIOpen 文档），因此 float16 梯度在低于 2^-14 时就会下溢，"
    "而不是 2^-24：损失缩放值要取大一些。",
)
_MI250_NOTES = join(_TWO_DIES, _FLUSHES)
_FNUZ = Text(
    "float8 is the fnuz variant: e4m3 ends at 240, not 448, so scales and checkpoints do not carry over from "
    "NVIDIA devices.",
    "float8 是 fnuz 变体：e4m3 最大为 240 而不是 448，因此缩放因子和检查点不能与 NVIDIA 设备直接互用。",
)
_NO_TF32 = Text(
    "TF32 is emulated in software with bfloat16 products.", "TF32 由软件以 bfloat16 乘积模拟，没有硬件支持。"
)
_SHARED_UNITS = Text(
    "Matrix instructions run on the vector units, at the rate that packed 16-bit arithmetic has anyway.",
    "矩阵指令在向量单元上执行，速率与打包的 16 位运算相同。",
)
_VECTOR_ONLY = Text(
    "No matrix unit: 16-bit arithmetic is packed, two operations at a time.",
    "没有矩阵单元：16 位运算以打包方式进行，一次两个。",
)


def _instinct(
    model: str,
    architecture: str,
    float32: float,
    matrix: Mapping[str, MatrixPath],
    bandwidth: float,
    memory: float,
    aliases: tuple[str, ...] = (),
    notes: Text | None = None,
    float16: float | None = None,
) -> Device:
    return Device(
        id=f"amd-{model.casefold()}",
        name=f"AMD Instinct {model}",
        vendor="amd",
        kind="gpu",
        architecture=architecture,
        matrix=matrix,
        vector_tflops={"float32": float32} | ({} if float16 is None else {"float16": float16}),
        bandwidth_gb_per_second=bandwidth,
        memory_gib=(memory,),
        notes=notes,
        aliases=aliases,
        source=f"AMD Instinct {model} datasheet",
    )


def _radeon(
    model: str,
    architecture: str,
    float32: float,
    matrix: Mapping[str, MatrixPath],
    bandwidth: float,
    memory: tuple[float, ...],
    notes: Text | None = None,
) -> Device:
    name = f"AMD {model}" if model.startswith("Radeon") else f"AMD Radeon {model}"
    return Device(
        id=f"amd-{model.casefold().replace(' ', '-')}",
        name=name,
        vendor="amd",
        kind="gpu",
        architecture=architecture,
        matrix=matrix,
        vector_tflops={"float32": float32, "float16": round(2 * float32, 1)},
        bandwidth_gb_per_second=bandwidth,
        memory_gib=memory,
        notes=notes,
        aliases=(model.removeprefix("RX ").removeprefix("PRO "),),
        source=f"{name} product specifications",
    )


def _cdna_3() -> dict[str, MatrixPath]:
    sixteen = uniform(16, float16=1307.4, bfloat16=1307.4, tfloat32=653.7, float32=163.4)
    return sixteen | uniform(16, float8_e4m3fnuz=2614.9, float8_e5m2fnuz=2614.9)


def _cdna_4(half: float, float8: float, float4: float, float32: float) -> dict[str, MatrixPath]:
    emulated = {"tfloat32": MatrixPath(None, 16, native=False)}
    # Microscaling formats carry one scale per 32 elements (OCP MX 1.0), hence the alignment.
    block = uniform(32, float6_e2m3fn=float4, float6_e3m2fn=float4, float4_e2m1fn=float4)
    return uniform(16, float16=half, bfloat16=half, float32=float32) | float8_ocp(float8) | block | emulated


def _rdna_4(half: float, float8: float) -> dict[str, MatrixPath]:
    return uniform(16, float16=half, bfloat16=half) | float8_ocp(float8)


_MI100 = uniform(16, float16=184.6, bfloat16=92.3, float32=46.1)
_MI210 = uniform(16, float16=181.0, bfloat16=181.0, float32=45.3)
_MI250 = uniform(16, float16=362.1, bfloat16=362.1, float32=90.5)
_MI250X = uniform(16, float16=383.0, bfloat16=383.0, float32=95.7)
_MI300A = uniform(16, float16=980.6, bfloat16=980.6, tfloat32=490.3, float32=122.6) | uniform(
    16, float8_e4m3fnuz=1961.2, float8_e5m2fnuz=1961.2
)

ROWS: tuple[Device, ...] = (
    _instinct("MI50", "Vega 20", 13.3, {}, 1024, 32, ("radeon instinct mi50",), _VECTOR_ONLY, float16=26.5),
    _instinct("MI60", "Vega 20", 14.7, {}, 1024, 32, ("radeon instinct mi60",), _VECTOR_ONLY, float16=29.5),
    _instinct("MI100", "CDNA", 23.1, _MI100, 1228.8, 32),
    _instinct("MI210", "CDNA 2", 22.6, _MI210, 1638.4, 64, notes=_FLUSHES),
    # Drivers report "MI250X/MI250" for both; the lower figures are the safer reading.
    _instinct(
        "MI250",
        "CDNA 2",
        45.3,
        _MI250,
        3276.8,
        128,
        ("mi250x/mi250", "instinct mi250x / mi250"),
        _MI250_NOTES,
    ),
    _instinct("MI250X", "CDNA 2", 47.9, _MI250X, 3276.8, 128, notes=_MI250_NOTES),
    _instinct("MI300A", "CDNA 3", 122.6, _MI300A, 5300, 128, notes=_FNUZ),
    _instinct("MI300X", "CDNA 3", 163.4, _cdna_3(), 5300, 192, notes=_FNUZ),
    _instinct("MI325X", "CDNA 3", 163.4, _cdna_3(), 6000, 256, notes=_FNUZ),
    _instinct("MI350X", "CDNA 4", 144.2, _cdna_4(2306.9, 4613.7, 9227.5, 144.2), 8000, 288, notes=_NO_TF32),
    _instinct("MI355X", "CDNA 4", 157.3, _cdna_4(2516.6, 5033.2, 10066.3, 157.3), 8000, 288, notes=_NO_TF32),
    _radeon("Radeon VII", "Vega 20", 13.4, {}, 1024, (16,), _VECTOR_ONLY),
    _radeon("RX 6800 XT", "RDNA 2", 20.7, {}, 512, (16,), _VECTOR_ONLY),
    _radeon("RX 6900 XT", "RDNA 2", 23.0, {}, 512, (16,), _VECTOR_ONLY),
    _radeon("RX 6950 XT", "RDNA 2", 23.7, {}, 576, (16,), _VECTOR_ONLY),
    _radeon("RX 7800 XT", "RDNA 3", 37.3, uniform(16, float16=74.6, bfloat16=74.6), 624, (16,), _SHARED_UNITS),
    _radeon("RX 7900 XT", "RDNA 3", 51.6, uniform(16, float16=103, bfloat16=103), 800, (20,), _SHARED_UNITS),
    _radeon("RX 7900 XTX", "RDNA 3", 61.4, uniform(16, float16=122.8, bfloat16=122.8), 960, (24,), _SHARED_UNITS),
    _radeon("PRO W7900", "RDNA 3", 61.3, uniform(16, float16=122.6, bfloat16=122.6), 864, (48,), _SHARED_UNITS),
    _radeon("RX 9060 XT", "RDNA 4", 25.6, _rdna_4(103, 205), 320, (16, 8)),
    _radeon("RX 9070", "RDNA 4", 36.1, _rdna_4(145, 289), 640, (16,)),
    _radeon("RX 9070 XT", "RDNA 4", 48.7, _rdna_4(195, 389), 640, (16,)),
)
