# SPDX-License-Identifier: Apache-2.0
"""Intel's GPUs and Gaudi accelerators, and AWS Trainium."""

from __future__ import annotations

from floatwise.hardware.device import Device
from floatwise.hardware.table.paths import float8_ocp, uniform
from floatwise.language import Text

__all__ = ["ROWS"]

# XMX multiplies 8 x 16 by 16 x 16 tiles of 16-bit values (Intel joint_matrix documentation).
_XMX = 16
# No vendor rule is published; vLLM's Gaudi plug-in pads to this multiple: convention.
_GAUDI = 128
# The tensor engine is a systolic array of 128 x 128 (AWS Neuron architecture guide).
_NEURON = 128

_MAX_SOURCE = "Intel Data Center GPU Max Series Technical Overview (2024)"
_ARC_SOURCE = "Intel product specifications; Intel publishes XMX rates for 8-bit integers only"
_NO_OCP_FLOAT8 = Text(
    "Its 8-bit floats are configurable (cFP8), not the formats of the Open Compute Project.",
    "其 8 位浮点可配置（cFP8），并非 OCP（开放计算项目）规定的格式。",
)

_INTEL = (
    Device(
        id="intel-max-1100",
        name="Intel Data Center GPU Max 1100",
        vendor="intel",
        kind="gpu",
        architecture="Xe HPC",
        matrix=uniform(_XMX, float16=352, bfloat16=352, tfloat32=176),
        vector_tflops={"float32": 22.2},
        bandwidth_gb_per_second=1228.8,
        memory_gib=(48,),
        aliases=("gpu max 1100",),
        source=_MAX_SOURCE,
    ),
    Device(
        id="intel-max-1550",
        name="Intel Data Center GPU Max 1550",
        vendor="intel",
        kind="gpu",
        architecture="Xe HPC",
        matrix=uniform(_XMX, float16=839, bfloat16=839, tfloat32=419),
        vector_tflops={"float32": 52.4},
        bandwidth_gb_per_second=3276.8,
        memory_gib=(128,),
        aliases=("gpu max 1550", "ponte vecchio"),
        notes=Text(
            "Two stacks, each of which can show as a device of its own with half these rates.",
            "由两个堆栈组成，每个都可能显示为一个设备，速率减半。",
        ),
        source=_MAX_SOURCE,
    ),
    Device(
        id="intel-arc-a770",
        name="Intel Arc A770",
        vendor="intel",
        kind="gpu",
        architecture="Xe HPG",
        matrix=uniform(_XMX, float16=None, bfloat16=None),
        bandwidth_gb_per_second=560,
        memory_gib=(16, 8),
        aliases=("a770",),
        source=_ARC_SOURCE,
    ),
    Device(
        id="intel-arc-b580",
        name="Intel Arc B580",
        vendor="intel",
        kind="gpu",
        architecture="Xe2",
        matrix=uniform(_XMX, float16=None, bfloat16=None),
        bandwidth_gb_per_second=456,
        memory_gib=(12,),
        aliases=("b580",),
        source=_ARC_SOURCE,
    ),
)

_HABANA = (
    Device(
        id="habana-gaudi2",
        name="Intel Gaudi 2",
        vendor="habana",
        kind="accelerator",
        architecture="Gaudi 2",
        matrix=uniform(_GAUDI, bfloat16=432, float16=None, tfloat32=None, float32=None)
        | float8_ocp(865, alignment=_GAUDI),
        bandwidth_gb_per_second=2450,
        memory_gib=(96,),
        aliases=("hl 225", "hl 225b", "hl 225d"),
        notes=Text(
            "Its e4m3 ends at 240, not 448, and tensor scales must come from four powers of two.",
            "其 e4m3 最大为 240 而不是 448，张量的缩放因子只能取四个 2 的幂之一。",
        ),
        source="Intel Gaudi 2 AI Accelerator white paper (2024)",
    ),
    Device(
        id="habana-gaudi3",
        name="Intel Gaudi 3",
        vendor="habana",
        kind="accelerator",
        architecture="Gaudi 3",
        matrix=uniform(_GAUDI, bfloat16=1835, float16=459, tfloat32=459, float32=229)
        | float8_ocp(1835, alignment=_GAUDI),
        bandwidth_gb_per_second=3700,
        memory_gib=(128,),
        aliases=("hl 325l", "hl 325", "hl 335", "hl 338"),
        notes=Text(
            "float8 and bfloat16 have the same peak: float8 saves memory traffic, not arithmetic. Shipping "
            "parts clock lower than the white paper assumes (about 1678 TFLOPS).",
            "float8 与 bfloat16 峰值相同：float8 省的是访存，不是计算。实际出货的芯片频率低于白皮书"
            "（约 1678 TFLOPS）。",
        ),
        source="Intel Gaudi 3 AI Accelerator white paper (2024)",
    ),
)

_AWS = (
    Device(
        id="aws-trainium1",
        name="AWS Trainium",
        vendor="aws",
        kind="accelerator",
        architecture="NeuronCore-v2",
        matrix=uniform(_NEURON, bfloat16=190, float16=190, tfloat32=190, float32=47.5),
        bandwidth_gb_per_second=820,
        memory_gib=(32,),
        aliases=("trn1", "trainium 1"),
        notes=_NO_OCP_FLOAT8,
        source="AWS Neuron documentation, Trainium Architecture",
    ),
    Device(
        id="aws-trainium2",
        name="AWS Trainium2",
        vendor="aws",
        kind="accelerator",
        architecture="NeuronCore-v3",
        matrix=uniform(_NEURON, bfloat16=667, float16=667, tfloat32=667, float32=181),
        bandwidth_gb_per_second=2900,
        memory_gib=(96,),
        aliases=("trn2",),
        notes=_NO_OCP_FLOAT8,
        source="AWS Neuron documentation, Trainium2 Architecture",
    ),
)

ROWS: tuple[Device, ...] = _INTEL + _HABANA + _AWS
