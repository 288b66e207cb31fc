# SPDX-License-Identifier: Apache-2.0
"""Which family of recipes fits a device, told from its row alone."""

from __future__ import annotations

from floatwise.hardware.device import Device
from floatwise.language import Text

__all__ = ["device_advice"]

_UNRELIABLE_FLOAT16 = Text(
    "Stay in float32: float16 gives wrong results here and there is no matrix unit to gain from.",
    "请留在 float32：这里 float16 的结果不可靠，也没有矩阵单元可以受益。",
)
_BFLOAT16 = Text(
    "bf16-mixed: bfloat16 for matrix products, float32 weights, no loss scale.",
    "bf16-mixed：矩阵乘法用 bfloat16，权重保持 float32，不需要损失缩放。",
)
_FLOAT16 = Text(
    "fp16-mixed with loss scaling. Never bfloat16: there is no unit for it, frameworks only emulate it.",
    "fp16-mixed，并使用损失缩放。不要用 bfloat16：没有对应的硬件单元，框架只是模拟。",
)
_FLOAT16_AND_BFLOAT16 = Text(
    "fp16-mixed runs just as fast, but needs a loss scale.", "fp16-mixed 同样快，但需要损失缩放。"
)
_TFLOAT32 = Text(
    "What stays in float32 can use TF32 matrix products: see the tf32 recipe.",
    "仍为 float32 的部分可以使用 TF32 矩阵乘法：见 tf32 配方。",
)
_FLOAT8 = Text(
    "float8 can speed up large linear layers further: try fp8-tensorwise once bf16-mixed is right.",
    "float8 还能进一步加速大的线性层：bf16-mixed 正确之后可以试 fp8-tensorwise。",
)
_PACKED_FLOAT16 = Text(
    "fp16-mixed with loss scaling saves memory and up to half the arithmetic time; there is no matrix unit.",
    "fp16-mixed 并使用损失缩放可以省显存，运算时间最多减半；没有矩阵单元。",
)
_FLOAT32 = Text(
    "Stay in float32 unless memory is short: without a matrix unit 16-bit formats save memory, not time.",
    "除非内存不够，否则留在 float32：没有矩阵单元，16 位格式只省内存，不省时间。",
)


def device_advice(device: Device) -> Text:
    """Returns in a sentence or two which recipes fit a device."""
    parts = [_first_choice(device)]
    if device.has_matrix("bfloat16") and _rate(device, "float16") == _rate(device, "bfloat16") is not None:
        parts.append(_FLOAT16_AND_BFLOAT16)
    if _is_faster(device, "float8_e4m3fn") or _is_faster(device, "float8_e4m3fnuz"):
        parts.append(_FLOAT8)
    if device.has_matrix("tfloat32"):
        parts.append(_TFLOAT32)
    return Text(" ".join(p.en for p in parts), "".join(p.zh for p in parts))


def _first_choice(device: Device) -> Text:
    if "float16" in device.unreliable:
        return _UNRELIABLE_FLOAT16
    if device.has_matrix("bfloat16"):
        return _BFLOAT16
    if device.has_matrix("float16"):
        return _FLOAT16
    if device.vector_tflops.get("float16", 0.0) > device.vector_tflops.get("float32", 0.0):
        return _PACKED_FLOAT16
    return _FLOAT32


def _is_faster(device: Device, format: str) -> bool:
    """True when a format has a unit that is not known to be as slow as bfloat16's."""
    rate, base = _rate(device, format), _rate(device, "bfloat16")
    return device.has_matrix(format) and (rate is None or base is None or rate > base)


def _rate(device: Device, format: str) -> float | None:
    return device.matrix[format].peak_tflops if device.has_matrix(format) else None
