# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's data center accelerators; peaks are the datasheets' dense figures with float32 accumulation."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.table.paths import ada, ampere, blackwell, volta
from floatwise.hardware.table.remarks import SHARED_MEMORY, SLOW_HALF
from floatwise.language import Text

__all__ = ["ROWS"]

_BY_VARIANT = Text(
    "The bandwidth is that of the fastest variant; smaller memories and PCIe cards have less.",
    "带宽为最快型号的数值；显存较小的型号和 PCIe 卡更低。",
)
_TWO_GPUS = Text("The card holds two of these GPUs.", "一张卡上有两颗这样的 GPU。")


def _row(
    model: str,
    architecture: str,
    capability: str,
    float32: float,
    matrix: Mapping[str, MatrixPath],
    bandwidth: float,
    memory: tuple[float, ...],
    source: str,
    aliases: tuple[str, ...] = (),
    notes: Text | None = None,
    float16: float | None = None,
) -> Device:
    vector = {"float32": float32} | ({} if float16 is None else {"float16": float16})
    return Device(
        id=f"nvidia-{model.casefold().replace(' ', '-')}",
        name=f"NVIDIA {model}",
        vendor="nvidia",
        kind="gpu",
        architecture=architecture,
        compute_capability=capability,
        matrix=matrix,
        vector_tflops=vector,
        bandwidth_gb_per_second=bandwidth,
        memory_gib=memory,
        notes=notes,
        aliases=aliases,
        source=source,
    )


_V100 = "NVIDIA V100 Tensor Core GPU datasheet (2020)"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet (2022)"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet and architecture white paper (2023)"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet (2024)"
_P100 = "NVIDIA Tesla P100 white paper (2016)"
_B200 = "NVIDIA Blackwell datasheet, HGX and GB200 (2024), per GPU, without sparsity"
_B300 = "NVIDIA HGX B300 and GB300 NVL72 specifications (2025), per GPU, without sparsity"

_HOPPER = ada(989.4, 494.7, 1978.9)
_HOPPER_NVL = ada(835.5, 417.5, 1670.5)

_BEFORE_AMPERE = (
    _row(
        "K80",
        "Kepler",
        "3.7",
        4.37,
        {},
        240,
        (12,),
        "NVIDIA Tesla K80 datasheet (2014), halved",
        notes=_TWO_GPUS,
    ),
    _row("P4", "Pascal", "6.1", 5.5, {}, 192, (8,), "NVIDIA Tesla P4 datasheet (2016)", notes=SLOW_HALF),
    _row("P40", "Pascal", "6.1", 12.0, {}, 346, (24,), "NVIDIA Tesla P40 datasheet (2016)", notes=SLOW_HALF),
    _row("P100", "Pascal", "6.0", 10.6, {}, 732, (16,), _P100, ("p100 sxm2",), float16=21.2),
    _row("P100 PCIe", "Pascal", "6.0", 9.3, {}, 732, (16, 12), _P100, notes=_BY_VARIANT, float16=18.7),
    _row("V100", "Volta", "7.0", 15.7, volta(125), 900, (32, 16), _V100, ("v100 sxm2", "v100 sxm3")),
    _row("V100 PCIe", "Volta", "7.0", 14.0, volta(112), 900, (32, 16), _V100),
    _row("V100S", "Volta", "7.0", 16.4, volta(130), 1134, (32,), _V100, ("v100s pcie",)),
    _row(
        "T4",
        "Turing",
        "7.5",
        8.1,
        volta(65),
        320,
        (16,),
        "NVIDIA T4 Tensor Core GPU datasheet (2019)",
        ("t4g",),
    ),
)

_AMPERE = (
    _row("A100", "Ampere", "8.0", 19.5, ampere(312, 156), 2039, (80, 40), _A100, notes=_BY_VARIANT),
    _row("A800", "Ampere", "8.0", 19.5, ampere(312, 156), 2039, (80, 40), "NVIDIA A800 datasheet (2022)"),
    _row("A30", "Ampere", "8.0", 10.3, ampere(165, 82), 933, (24,), "NVIDIA A30 datasheet (2021)"),
    _row("A40", "Ampere", "8.6", 37.4, ampere(149.7, 74.8), 696, (48,), "NVIDIA A40 datasheet (2021)"),
    _row("A10", "Ampere", "8.6", 31.2, ampere(125, 62.5), 600, (24,), "NVIDIA A10 datasheet (2021)"),
    # A cut-down A10 made for one cloud: its matrix units accumulate in float32 at half rate, as GeForce's do.
    _row("A10G", "Ampere", "8.6", 35.0, ampere(70, 35), 600, (24,), "NVIDIA A10G datasheet (2021)"),
    _row("A16", "Ampere", "8.6", 4.5, ampere(17.9, 9), 200, (16,), "NVIDIA A16 datasheet (2021), per GPU"),
    _row("A2", "Ampere", "8.6", 4.5, ampere(18, 9), 200, (16,), "NVIDIA A2 datasheet (2021)"),
)

_ADA = (
    _row(
        "L4",
        "Ada Lovelace",
        "8.9",
        30.3,
        ada(121, 60, 242.5),
        300,
        (24,),
        "NVIDIA L4 datasheet (2023), halved",
    ),
    _row("L20", "Ada Lovelace", "8.9", 59.8, ada(119.5, 59.8, 239), 864, (48,), "NVIDIA L20 datasheet (2023)"),
    _row("L40", "Ada Lovelace", "8.9", 90.5, ada(181.05, 90.5, 362), 864, (48,), "NVIDIA L40 datasheet (2022)"),
    _row("L40S", "Ada Lovelace", "8.9", 91.6, ada(362.05, 183, 733), 864, (48,), "NVIDIA L40S datasheet (2023)"),
)

_HOPPERS = (
    _row("H100", "Hopper", "9.0", 66.9, _HOPPER, 3350, (80, 96, 64), _H100, ("h100 sxm5",)),
    _row("H100 PCIe", "Hopper", "9.0", 51.2, ada(756, 378, 1513), 2039, (80,), _H100),
    _row("H100 NVL", "Hopper", "9.0", 60, _HOPPER_NVL, 3938, (94,), "NVIDIA H100 NVL datasheet (2024), halved"),
    _row("H800", "Hopper", "9.0", 66.9, _HOPPER, 3350, (80,), "NVIDIA H800 datasheet (2023), SXM"),
    _row(
        "H20",
        "Hopper",
        "9.0",
        44,
        ada(148, 74, 296),
        4000,
        (96, 141),
        "NVIDIA H20 datasheet (2023)",
        ("h20 3e",),
    ),
    _row("H200", "Hopper", "9.0", 66.9, _HOPPER, 4800, (141,), _H200, ("h200 sxm",)),
    _row("H200 NVL", "Hopper", "9.0", 60, _HOPPER_NVL, 4800, (141,), _H200),
    _row(
        "GH200",
        "Hopper",
        "9.0",
        66.9,
        _HOPPER,
        4900,
        (144, 96),
        "NVIDIA GH200 datasheet (2024)",
        ("gh200 480gb", "gh200 144g hbm3e", "grace hopper"),
        notes=_BY_VARIANT,
    ),
)

_BLACKWELLS = (
    _row("B100", "Blackwell", "10.0", 60, blackwell(1750, 900, 3500, 7000), 8000, (192,), _B200),
    _row("B200", "Blackwell", "10.0", 75, blackwell(2250, 1125, 4500, 9000), 8000, (180, 192), _B200),
    _row("GB200", "Blackwell", "10.0", 80, blackwell(2500, 1250, 5000, 10000), 8000, (186, 192), _B200),
    # NVIDIA's own dense FP4 figures for this board differ from page to page, hence None.
    _row("B300", "Blackwell Ultra", "10.3", 75, blackwell(2250, 1125, 4500, None), 8000, (288, 270), _B300),
    _row("GB300", "Blackwell Ultra", "10.3", 80, blackwell(2500, 1250, 5000, 15000), 8000, (288, 279), _B300),
    Device(
        id="nvidia-gb10",
        name="NVIDIA GB10",
        vendor="nvidia",
        kind="gpu",
        architecture="Blackwell",
        compute_capability="12.1",
        matrix=blackwell(None, None, None, 500),
        bandwidth_gb_per_second=273,
        memory_gib=(128,),
        aliases=("dgx spark",),
        notes=SHARED_MEMORY,
        source="NVIDIA DGX Spark datasheet (2025); only a sparse FP4 rate is published, halved here",
    ),
)

ROWS: tuple[Device, ...] = _BEFORE_AMPERE + _AMPERE + _ADA + _HOPPERS + _BLACKWELLS
