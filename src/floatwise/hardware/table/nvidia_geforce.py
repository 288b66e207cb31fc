# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's GeForce and TITAN cards.

GeForce RTX matrix units accumulate float16 products in float32 at half the rate of float16 accumulation (the
architecture white papers list both). Training accumulates in float32, so the rates here are the float32 ones:
four times the vector rate on Turing, twice on later cards, which have twice the vector units.
"""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.paths import ada, ampere, blackwell, volta
from floatwise.hardware.table.remarks import SLOW_HALF
from floatwise.language import Text

__all__ = ["ROWS"]

_DESKTOP = Text(
    "Rates are those of the desktop card at its reference boost clock; the laptop version is slower.",
    "速率为台式机显卡在公版加速频率下的数值；笔记本版更慢。",
)
_NO_MATRIX_UNIT = Text(
    "No matrix unit, although the compute capability (7.5) is that of cards which have one.",
    "没有矩阵单元，尽管其计算能力（7.5）与带矩阵单元的显卡相同。",
)
_HALF_IS_NAN = Text(
    "float16 convolutions and matrix products are known to return NaN on these cards (PyTorch issues 58123 and 77955).",
    "已知这些显卡上 float16 卷积和矩阵乘法会得到 NaN（PyTorch issue 58123、77955）。",
)

_PASCAL = "NVIDIA GeForce 10 series specifications; 2 x CUDA cores x boost clock"
_TURING_GTX = "NVIDIA GeForce GTX 16 series specifications; 2 x CUDA cores x boost clock"
_TURING = "NVIDIA Turing GPU Architecture white paper (2018) and GeForce RTX 20 series specifications"
_AMPERE = "NVIDIA Ampere GA102 GPU Architecture white paper (2021) and GeForce RTX 30 series specifications"
_ADA = "NVIDIA Ada GPU Architecture white paper (2023) and GeForce RTX 40 series specifications"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture white paper (2025) and GeForce RTX 50 series specifications"


def _card(
    model: str,
    architecture: str,
    capability: str,
    matrix: Mapping[str, MatrixPath],
    vector: Mapping[str, float],
    bandwidth: float,
    memory: tuple[float, ...],
    source: str,
    notes: Text | None = _DESKTOP,
    unreliable: Mapping[str, Text] | None = None,
) -> Device:
    family, number = model.split(" ", 1)
    titan = family == "TITAN"
    return Device(
        id=f"nvidia-{model.casefold().replace(' ', '-')}",
        name=f"NVIDIA {model}" if titan else f"NVIDIA GeForce {model}",
        vendor="nvidia",
        kind="gpu",
        architecture=architecture,
        compute_capability=capability,
        matrix=matrix,
        vector_tflops=vector,
        bandwidth_gb_per_second=bandwidth,
        memory_gib=memory,
        unreliable=unreliable or {},
        notes=notes,
        aliases=() if titan else (number,),
        source=source,
    )


def _pascal(model: str, float32: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    rates = {"float32": float32}
    return _card(model, "Pascal", "6.1", {}, rates, bandwidth, memory, _PASCAL, SLOW_HALF)


def _gtx_16(model: str, float32: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    rates = {"float32": float32, "float16": 2 * float32}
    faults = {"float16": _HALF_IS_NAN}
    return _card(f"GTX {model}", "Turing", "7.5", {}, rates, bandwidth, memory, _TURING_GTX, _NO_MATRIX_UNIT, faults)


def _rtx_20(model: str, float32: float, half: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    rates = {"float32": float32}
    return _card(f"RTX {model}", "Turing", "7.5", volta(half), rates, bandwidth, memory, _TURING)


def _rtx_30(model: str, float32: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    matrix = ampere(_times(2, float32), float32)
    return _card(f"RTX {model}", "Ampere", "8.6", matrix, {"float32": float32}, bandwidth, memory, _AMPERE)


def _rtx_40(model: str, float32: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    matrix = ada(_times(2, float32), float32, _times(4, float32))
    return _card(f"RTX {model}", "Ada Lovelace", "8.9", matrix, {"float32": float32}, bandwidth, memory, _ADA)


def _rtx_50(model: str, float32: float, float4: float, bandwidth: float, memory: tuple[float, ...]) -> Device:
    matrix = blackwell(_times(2, float32), float32, _times(4, float32), float4)
    return _card(f"RTX {model}", "Blackwell", "12.0", matrix, {"float32": float32}, bandwidth, memory, _BLACKWELL)


def _times(factor: int, float32: float) -> float:
    return round(factor * float32, 1)


ROWS: tuple[Device, ...] = (
    _pascal("GTX 1050 Ti", 2.1, 112, (4,)),
    _pascal("GTX 1060", 4.4, 192, (6, 3)),
    _pascal("GTX 1070", 6.5, 256, (8,)),
    _pascal("GTX 1070 Ti", 8.2, 256, (8,)),
    _pascal("GTX 1080", 8.9, 320, (8,)),
    _pascal("GTX 1080 Ti", 11.3, 484, (11,)),
    _pascal("TITAN X Pascal", 11.0, 480, (12,)),
    _pascal("TITAN Xp", 12.1, 548, (12,)),
    _card(
        "TITAN V",
        "Volta",
        "7.0",
        volta(110),
        {"float32": 14.9},
        653,
        (12,),
        "NVIDIA TITAN V specifications (2017)",
        None,
    ),
    _gtx_16("1650", 2.98, 128, (4,)),
    _gtx_16("1650 SUPER", 4.42, 192, (4,)),
    _gtx_16("1660", 5.03, 192, (6,)),
    _gtx_16("1660 SUPER", 5.03, 336, (6,)),
    _gtx_16("1660 Ti", 5.44, 288, (6,)),
    _rtx_20("2060", 6.5, 25.8, 336, (6, 12)),
    _rtx_20("2060 SUPER", 7.2, 28.7, 448, (8,)),
    _rtx_20("2070", 7.5, 29.9, 448, (8,)),
    _rtx_20("2070 SUPER", 9.1, 36.2, 448, (8,)),
    _rtx_20("2080", 10.1, 40.3, 448, (8,)),
    _rtx_20("2080 SUPER", 11.2, 44.6, 496, (8,)),
    _rtx_20("2080 Ti", 13.4, 53.8, 616, (11,)),
    # The TITAN accumulates in float32 at full rate.
    _card("TITAN RTX", "Turing", "7.5", volta(130.5), {"float32": 16.3}, 672, (24,), _TURING, None),
    _rtx_30("3050", 9.1, 224, (8,)),
    _rtx_30("3060", 12.7, 360, (12, 8)),
    _rtx_30("3060 Ti", 16.2, 448, (8,)),
    _rtx_30("3070", 20.3, 448, (8,)),
    _rtx_30("3070 Ti", 21.7, 608, (8,)),
    _rtx_30("3080", 29.8, 760, (10, 12)),
    _rtx_30("3080 Ti", 34.1, 912, (12,)),
    _rtx_30("3090", 35.6, 936, (24,)),
    _rtx_30("3090 Ti", 40.0, 1008, (24,)),
    _rtx_40("4060", 15.1, 272, (8,)),
    _rtx_40("4060 Ti", 22.1, 288, (8, 16)),
    _rtx_40("4070", 29.1, 504, (12,)),
    _rtx_40("4070 SUPER", 35.5, 504, (12,)),
    _rtx_40("4070 Ti", 40.1, 504, (12,)),
    _rtx_40("4070 Ti SUPER", 44.1, 672, (16,)),
    _rtx_40("4080", 48.7, 717, (16,)),
    _rtx_40("4080 SUPER", 52.2, 736, (16,)),
    _rtx_40("4090 D", 73.5, 1008, (24,)),
    _rtx_40("4090", 82.6, 1008, (24,)),
    # FP4: half of the "AI TOPS" NVIDIA gives for each card, which count sparsity.
    _rtx_50("5050", 13.2, 210.5, 320, (8,)),
    _rtx_50("5060", 19.2, 307, 448, (8,)),
    _rtx_50("5060 Ti", 23.7, 379.5, 448, (16, 8)),
    _rtx_50("5070", 30.9, 494, 672, (12,)),
    _rtx_50("5070 Ti", 43.9, 703, 896, (16,)),
    _rtx_50("5080", 56.3, 900.5, 960, (16,)),
    _rtx_50("5090", 104.8, 1676, 1792, (32,)),
)
