# SPDX-License-Identifier: Apache-2.0
"""A device's row as labelled facts in two languages, for people to read."""

from __future__ import annotations

from collections.abc import Iterator

from floatwise.hardware.advice import device_advice
from floatwise.hardware.device import Device, MatrixPath
from floatwise.language import Text

__all__ = ["device_advice", "device_facts"]

_KINDS = {
    "gpu": Text("GPU", "GPU"),
    "tpu": Text("TPU", "TPU"),
    "accelerator": Text("accelerator", "加速器"),
    "cpu": Text("CPU", "CPU"),
}
_PEAK = Text("{peak:g} TFLOPS dense", "稠密峰值 {peak:g} TFLOPS")
_NO_PEAK = Text("peak not published", "峰值未公布")
_PER_CYCLE = Text("{flops} operations per cycle and core", "每核每周期 {flops} 次运算")
_PER_CORE = Text("peak depends on cores and clock", "峰值取决于核数和频率")
_SUMS = Text("sums in {format}", "以 {format} 累加")
_ALIGNMENT = Text("dimensions in multiples of {alignment}", "维度取 {alignment} 的倍数")
_NOT_NATIVE = Text("accepted but not native, so not faster", "可用但非硬件原生，不会更快")
_SEPARATOR = Text(", ", "，")

_MATRIX = Text("{format} matrix unit", "{format} 矩阵单元")
_EMULATED = Text("{format}, emulated", "{format}（模拟）")
_NO_UNIT = (Text("matrix unit", "矩阵单元"), Text("none", "无"))
_VECTOR = Text("{format} outside the matrix unit", "{format} 向量运算")


def device_facts(device: Device) -> list[tuple[Text, str]]:
    """Returns every fact of a row as (label, value), values in the current language."""
    return [*_identity(device), *_rates(device), *_memory(device), *_remarks(device)]


def _identity(device: Device) -> Iterator[tuple[Text, str]]:
    yield Text("name", "名称"), device.name
    yield Text("id", "标识"), device.id
    yield Text("kind", "类型"), str(_KINDS[device.kind])
    yield Text("vendor", "厂商"), device.vendor
    yield Text("architecture", "架构"), device.architecture
    if device.compute_capability:
        yield Text("compute capability", "计算能力"), device.compute_capability


def _rates(device: Device) -> Iterator[tuple[Text, str]]:
    for format, path in device.matrix.items():
        label = _MATRIX if path.native else _EMULATED
        yield _filled(label, format=format), _matrix_path(device, path)
    if not device.matrix:
        yield _NO_UNIT[0], str(_NO_UNIT[1])
    for format, peak in device.vector_tflops.items():
        yield _filled(_VECTOR, format=format), f"{peak:g} TFLOPS"


def _matrix_path(device: Device, path: MatrixPath) -> str:
    if path.flops_per_cycle_per_core is not None:
        peak = _PER_CYCLE.format(flops=path.flops_per_cycle_per_core)
    elif path.peak_tflops is not None:
        peak = _PEAK.format(peak=path.peak_tflops)
    else:
        peak = str(_PER_CORE if device.kind == "cpu" else _NO_PEAK)
    parts = [peak, _SUMS.format(format=path.accumulate), _ALIGNMENT.format(alignment=path.alignment)]
    return str(_SEPARATOR).join(parts if path.native else [*parts, str(_NOT_NATIVE)])


def _memory(device: Device) -> Iterator[tuple[Text, str]]:
    if device.memory_gib:
        yield Text("memory", "内存"), " / ".join(f"{size:g} GB" for size in device.memory_gib)
    if device.bandwidth_gb_per_second is not None:
        yield Text("memory bandwidth", "内存带宽"), f"{device.bandwidth_gb_per_second:g} GB/s"


def _remarks(device: Device) -> Iterator[tuple[Text, str]]:
    for format, fault in device.unreliable.items():
        yield _filled(Text("{format} is unreliable", "{format} 不可靠"), format=format), str(fault)
    if device.notes is not None:
        yield Text("notes", "说明"), str(device.notes)
    yield Text("advice", "建议"), str(device_advice(device))
    if device.aliases:
        yield Text("also called", "别名"), ", ".join(device.aliases)
    yield Text("source", "来源"), device.source


def _filled(text: Text, **values: object) -> Text:
    return Text(text.en.format(**values), text.zh.format(**values))
