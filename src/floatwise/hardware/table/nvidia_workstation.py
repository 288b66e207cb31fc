# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's workstation cards; unlike GeForce they accumulate in float32 at the full matrix rate."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.paths import ada, ampere, blackwell, volta
from floatwise.language import Text

__all__ = ["ROWS"]

_EDITIONS = Text(
    "Rates are those of the 600 W workstation edition; the Max-Q and server editions run at lower clocks.",
    "速率为 600 W 工作站版的数值；Max-Q 版和服务器版频率更低。",
)


def _card(
    id: str,
    name: str,
    architecture: str,
    capability: str,
    matrix: Mapping[str, MatrixPath],
    float32: float | None,
    bandwidth: float,
    memory: tuple[float, ...],
    aliases: tuple[str, ...],
    notes: Text | None = None,
) -> Device:
    return Device(
        id=f"nvidia-{id}",
        name=f"NVIDIA {name}",
        vendor="nvidia",
        kind="gpu",
        architecture=architecture,
        compute_capability=capability,
        matrix=matrix,
        vector_tflops={} if float32 is None else {"float32": float32},
        bandwidth_gb_per_second=bandwidth,
        memory_gib=memory,
        notes=notes,
        aliases=aliases,
        source=f"NVIDIA {name} datasheet",
    )


def _quadro(model: str, float32: float, half: float, bandwidth: float, memory: tuple[float, ...], alias: str) -> Device:
    architecture, capability = ("Volta", "7.0") if model.startswith("GV") else ("Turing", "7.5")
    id = f"quadro-{model.casefold().replace(' ', '-')}"
    name = f"Quadro {model}"
    return _card(id, name, architecture, capability, volta(half), float32, bandwidth, memory, (alias,))


def _rtx_a(
    model: str, float32: float, half: float, tfloat32: float, bandwidth: float, memory: tuple[float, ...]
) -> Device:
    matrix = ampere(half, tfloat32)
    name = f"RTX {model}"
    return _card(f"rtx-{model.casefold()}", name, "Ampere", "8.6", matrix, float32, bandwidth, memory, (model,))


def _rtx_ada(
    model: str, float32: float, half: float, tfloat32: float, float8: float, bandwidth: float, memory: float
) -> Device:
    matrix = ada(half, tfloat32, float8)
    aliases = (f"{model} ada", f"a{model} ada", f"rtx a{model} ada")
    name = f"RTX {model} Ada Generation"
    return _card(f"rtx-{model}-ada", name, "Ada Lovelace", "8.9", matrix, float32, bandwidth, (memory,), aliases)


def _rtx_pro(
    model: str,
    matrix: Mapping[str, MatrixPath],
    float32: float | None,
    bandwidth: float,
    memory: tuple[float, ...],
    notes: Text | None = None,
) -> Device:
    aliases = (f"rtx pro {model}", f"pro {model}", f"pro {model} blackwell", f"rtx {model} blackwell")
    name = f"RTX PRO {model} Blackwell"
    return _card(f"rtx-pro-{model}", name, "Blackwell", "12.0", matrix, float32, bandwidth, memory, aliases, notes)


ROWS: tuple[Device, ...] = (
    _quadro("GV100", 14.8, 118.5, 870, (32,), "gv100"),
    _quadro("RTX 4000", 7.1, 57.0, 416, (8,), "rtx 4000"),
    _quadro("RTX 5000", 11.2, 89.2, 448, (16,), "rtx 5000"),
    _quadro("RTX 6000", 16.3, 130.5, 672, (24,), "rtx 6000"),
    _quadro("RTX 8000", 16.3, 130.5, 672, (48,), "rtx 8000"),
    _rtx_a("A2000", 8.0, 31.9, 16.0, 288, (12, 6)),
    _rtx_a("A4000", 19.2, 76.7, 38.3, 448, (16,)),
    _rtx_a("A4500", 23.7, 94.6, 47.3, 640, (20,)),
    _rtx_a("A5000", 27.8, 111.1, 55.6, 768, (24,)),
    _rtx_a("A5500", 34.1, 136.4, 68.2, 768, (24,)),
    _rtx_a("A6000", 38.7, 154.8, 77.4, 768, (48,)),
    _rtx_ada("2000", 12.0, 48.0, 24.0, 96.0, 224, 16),
    _rtx_ada("4000", 26.7, 106.9, 53.4, 213.8, 360, 20),
    _rtx_ada("4500", 39.6, 158.5, 79.2, 317.0, 432, 24),
    _rtx_ada("5000", 65.3, 261.1, 130.6, 522.2, 576, 32),
    _rtx_ada("6000", 91.1, 364.2, 182.1, 728.5, 960, 48),
    # Dense 16-bit rates of the smaller PRO cards are not in their datasheets, which give only sparse FP4.
    _rtx_pro("4000", blackwell(None, None, None, None), None, 672, (24,)),
    _rtx_pro("4500", blackwell(None, None, None, None), None, 896, (32,)),
    _rtx_pro("5000", blackwell(None, None, None, None), None, 1344, (48, 72)),
    _rtx_pro("6000", blackwell(503.8, 251.9, 1007.6, 2015.2), 126.0, 1792, (96,), _EDITIONS),
)
