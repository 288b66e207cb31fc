# SPDX-License-Identifier: Apache-2.0
"""What a change of a plan means for training, in a sentence."""

from __future__ import annotations

from typing import Any

from floatwise.formats import get_format
from floatwise.language import Text

__all__ = ["meaning_of"]

_FINER = Text("rounding is {times} times finer", "舍入精细 {times} 倍")
_COARSER = Text("rounding is {times} times coarser", "舍入粗糙 {times} 倍")
_SAME_ROUNDING = Text("rounding stays the same", "舍入不变")
_LARGER = Text("the largest value grows from {before:.3g} to {after:.3g}", "最大值由 {before:.3g} 增至 {after:.3g}")
_SMALLER = Text("the largest value shrinks from {before:.3g} to {after:.3g}", "最大值由 {before:.3g} 降至 {after:.3g}")
_SAME_RANGE = Text("the largest value is about the same", "最大值基本不变")
_FORMAT_CHANGE = Text(
    "{before} -> {after}: {rounding}; {range}",
    "{before} -> {after}：{rounding}；{range}",
)

# By path and new value, then by path alone.
_MEANINGS: dict[tuple[str, Any], Text] = {
    ("float32_matmul", "tf32"): Text(
        "float32 matrix products may use TF32, which keeps 10 of the 23 mantissa bits of their operands.",
        "float32 矩阵乘法可使用 TF32，操作数的 23 位尾数只保留 10 位。",
    ),
    ("float32_matmul", "ieee"): Text(
        "float32 matrix products keep all 23 mantissa bits of their operands.",
        "float32 矩阵乘法保留操作数全部 23 位尾数。",
    ),
    ("weights.master", "none"): Text(
        "No master weights: the optimizer updates the stored weights themselves.",
        "不使用主权重：优化器直接更新所存储的权重。",
    ),
    ("weights.master", "float32"): Text(
        "A float32 copy of each weight is kept and updated: 4 more bytes a weight.",
        "另存一份 float32 主权重供更新：每个权重多占 4 字节。",
    ),
    ("weights.master", "split"): Text(
        "The 16 trailing bits are kept beside each bfloat16 weight: exact float32 updates, 2 bytes a weight.",
        "在每个 bfloat16 权重旁保存低 16 位：更新与 float32 完全一致，每个权重只多占 2 字节。",
    ),
    ("weights.master", "kahan"): Text(
        "The rounding error of an update is carried into the next: near float32 accuracy, 2 bytes a weight.",
        "每次更新的舍入误差会补偿到下一次更新：精度接近 float32，每个权重多占 2 字节。",
    ),
    ("weights.master", "stochastic"): Text(
        "Updates are rounded up or down by chance, right on average: no more memory, and some noise.",
        "更新按随机舍入处理，平均而言无偏：不增加内存，但会引入少量噪声。",
    ),
    ("scaling", "tensorwise"): Text(
        "One scale factor per float8 tensor: the fastest, and one outlier coarsens the whole tensor.",
        "每个 float8 张量一个缩放因子：速度最快，但一个离群值会拉低整个张量的精度。",
    ),
    ("scaling", "rowwise"): Text(
        "One scale factor per row of a float8 operand: an outlier coarsens its own row only.",
        "float8 操作数每行一个缩放因子：离群值只影响所在的行。",
    ),
    ("scaling", "rowwise_with_gw_hp"): Text(
        "One scale factor per row of a float8 operand, and gradients of weights are multiplied in bfloat16.",
        "float8 操作数每行一个缩放因子，权重梯度用 bfloat16 相乘。",
    ),
    ("scaling", "mx"): Text(
        "One power of two as the scale factor of every 32 elements: an outlier coarsens those 32 only.",
        "每 32 个元素共用一个 2 的幂作缩放因子：离群值只影响这 32 个元素。",
    ),
    ("loss_scale.mode", None): Text(
        "The loss is no longer scaled.",
        "不再对损失做缩放。",
    ),
    ("loss_scale.mode", "static"): Text(
        "The loss scale stays as it is: an overflow skips its step and is not answered by a smaller scale.",
        "损失缩放系数固定不变：溢出时跳过该步，但不会减小系数。",
    ),
    ("loss_scale.growth", "headroom"): Text(
        "The loss scale grows only where gradients leave room, and not to where it has overflowed: no step is lost to "
        "a guess.",
        "仅当梯度留有余量时损失缩放系数才会增大，且不会增大到曾经溢出的值：不会因试探而损失训练步。",
    ),
    ("loss_scale.growth", "fixed"): Text(
        "The loss scale grows after every growth_interval good steps, as PyTorch's does: where that is too far, a step "
        "is skipped.",
        "每连续 growth_interval 步正常，损失缩放系数就增大，与 PyTorch 一致：若增大过头，会跳过一步。",
    ),
    ("loss_scale.mode", "dynamic"): Text(
        "The loss scale follows the gradients: it shrinks after an overflow and grows after many good steps.",
        "损失缩放系数随梯度调整：溢出后减小，连续若干步正常后增大。",
    ),
}
_OF_ITS_OWN = Text(
    "These modules compute in {after}, whatever the default is.",
    "这些模块用 {after} 计算，不受默认设置影响。",
)
_AS_DEFAULT = Text("These modules compute as the default says.", "这些模块按默认设置计算。")
_ORDER = Text(
    "Where two entries cover the same module, another one now wins.",
    "若两个条目匹配同一模块，现在生效的条目与之前不同。",
)
_START = Text(
    "Training starts from another loss scale: too large skips steps, too small loses small gradients.",
    "训练从不同的损失缩放系数开始：过大会跳过若干步，过小会丢失小梯度。",
)


def meaning_of(path: str, before: Any, after: Any) -> Text | None:
    """Returns what the change at `path` does to training; None where the values speak for themselves."""
    if path.split(".")[0] == "evidence":
        return None
    if path.endswith("_dtype") and before is not None and after is not None:
        return _format_change(before, after)
    if path.startswith("modules[") and path.endswith(".compute_dtype"):
        return _AS_DEFAULT if after is None else _filled(_OF_ITS_OWN, after=after)
    if path == "modules":
        return _ORDER
    if path == "loss_scale.initial_scale" and before is not None and after is not None:
        return _START
    return _MEANINGS.get((path, after)) if after is None or isinstance(after, str) else None


def _format_change(before: str, after: str) -> Text:
    old, new = get_format(before), get_format(after)
    bits = new.mantissa_bits - old.mantissa_bits
    rounding = _FINER if bits > 0 else _COARSER if bits < 0 else _SAME_ROUNDING
    # float32 and bfloat16 differ by 0.4 % at the top, which no training notices.
    larger = new.max_exponent - old.max_exponent
    extent = _LARGER if larger > 0 else _SMALLER if larger < 0 else _SAME_RANGE
    rounding_text = _filled(rounding, times=2 ** abs(bits))
    range_text = _filled(extent, before=old.max, after=new.max)
    return Text(
        _FORMAT_CHANGE.en.format(before=before, after=after, rounding=rounding_text.en, range=range_text.en),
        _FORMAT_CHANGE.zh.format(before=before, after=after, rounding=rounding_text.zh, range=range_text.zh),
    )


def _filled(text: Text, **values: float | str) -> Text:
    return Text(text.en.format(**values), text.zh.format(**values))
