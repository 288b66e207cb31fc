# SPDX-License-Identifier: Apache-2.0
"""Layers that a lower default leaves in float32, each with its reason.

Keras casts a layer's inputs to its compute format before `call`, so a layer that would bring large values into range
gets them too late. The rows below are what was measured to go wrong with keras 3.15.1 on its three backends. A plan
that names such a layer itself, by a glob, is followed.

Batch and RMS normalization compute in float32 inside and fail on inputs above 65504 alone. Between float16 layers no
such value can arrive, so they are kept in float32 only where they read the model's inputs, at the cost of one layer.
Layer and group normalization (`autocast=False`) and the softmax inside attention are safe, and follow the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from floatwise.keras.layer_graph import Place, passes_on
from floatwise.language import Text

__all__ = ["OUTPUT_REASON", "float32_reason"]

_SIXTEEN_BITS = ("float16", "bfloat16")


@dataclass(frozen=True)
class _Row:
    """A kind of layer, the compute formats it is kept from, and why."""

    formats: Sequence[str]
    concerns: Callable[[Any, Place], bool]
    why: Text


def _is(*names: str) -> Callable[[Any, Place], bool]:
    classes = tuple(getattr(keras.layers, name) for name in names)
    return lambda layer, place: isinstance(layer, classes)


def _reads_input(*names: str) -> Callable[[Any, Place], bool]:
    classes = tuple(getattr(keras.layers, name) for name in names)
    return lambda layer, place: place.reads_input and isinstance(layer, classes)


def _is_softmax(layer: Any, place: Place) -> bool:
    named = getattr(getattr(layer, "activation", None), "__name__", "")
    return isinstance(layer, keras.layers.Softmax) or named in ("softmax", "log_softmax")


_ROWS = (
    _Row(
        _SIXTEEN_BITS,
        _is("Normalization", "Rescaling", "Discretization"),
        Text(
            "its inputs would be cast before they are scaled: above 65504 they become inf in float16, and they keep "
            "8 bits in bfloat16",
            "输入会在缩放之前被转换：float16 下超过 65504 的值变为 inf，bfloat16 下只保留 8 位有效数字",
        ),
    ),
    _Row(
        ("float16",),
        _is("UnitNormalization"),
        Text(
            "its sum of squares leaves float16's range: inputs of 300 give 0, inputs of 1e-4 give inf, zeros NaN",
            "其平方和超出 float16 的范围：输入 300 得 0，输入 1e-4 得 inf，全零得 NaN",
        ),
    ),
    _Row(
        ("float16",),
        _reads_input("BatchNormalization", "RMSNormalization"),
        Text(
            "it reads the model's inputs, which would be cast before it: above 65504 they become inf",
            "它直接读取模型输入，而输入会先被转换：超过 65504 的值变为 inf",
        ),
    ),
    _Row(
        _SIXTEEN_BITS,
        lambda layer, place: place.reads_input and passes_on(layer),
        Text(
            "it hands on the model's inputs, of which a cast would lose digits: id 4097 becomes 4096 in float16",
            "它传递模型输入，转换会丢失数位：float16 下编号 4097 变为 4096",
        ),
    ),
    _Row(
        _SIXTEEN_BITS,
        _is_softmax,
        Text(
            "a softmax that is sure and wrong has a zero or infinite gradient in float16, behind a finite loss; "
            "in bfloat16 probabilities keep 8 bits",
            "softmax 在确信但错误时，float16 下梯度为零或无穷而损失有限；bfloat16 下概率只有 8 位有效数字",
        ),
    ),
    _Row(
        ("float16",),
        lambda layer, place: getattr(layer, "activity_regularizer", None) is not None,
        Text(
            "its activity penalty is summed over all outputs, which overflows float16",
            "其激活正则项对所有输出求和，会超出 float16 的范围",
        ),
    ),
)

OUTPUT_REASON = Text(
    "it makes the model's output, which the loss gets in float32", "它产生模型输出，损失以 float32 接收"
)


def float32_reason(layer: Any, place: Place, compute_dtype: str, inside_attention: bool) -> Text | None:
    """Returns why a layer stays in float32 where the plan's default is `compute_dtype`; None where it need not.

    Args:
      layer: The layer.
      place: Where in the model it is.
      compute_dtype: What it would compute in.
      inside_attention: Whether it is part of an attention layer, whose own softmax is safe.
    """
    for row in _ROWS:
        if compute_dtype in row.formats and row.concerns(layer, place):
            if row.concerns is _is_softmax and inside_attention:
                continue
            return row.why
    return None
