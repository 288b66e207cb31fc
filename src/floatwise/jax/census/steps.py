# SPDX-License-Identifier: Apache-2.0
"""Failures that leave the loss finite: frozen weights, and gradients that are zero or infinite."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.census import Finding
from floatwise.errors import BadInputError
from floatwise.jax.dtypes import is_floating
from floatwise.jax.leaf_values import leaf_values
from floatwise.jax.paths import with_paths
from floatwise.language import Text

__all__ = ["examine_gradients", "examine_update"]

_NOT_FINITE = Text(
    "The loss is finite but these gradients are not: {paths}. Under a loss scale that is a step to skip, and the scale "
    "backs off; where it happens at every scale, keep the last of them in float32 (keep_float32, island).",
    "损失是有限值，但以下梯度不是：{paths}。使用损失缩放时应跳过这一步并降低缩放；若任何缩放下都如此，请将其中最后一个"
    "保持在 float32（keep_float32、island）。",
)
_LOSS_NOT_FINITE = Text(
    "The loss is not finite, which no loss scale cures: look at the inputs, and keep the part where the forward pass "
    "overflows in float32.",
    "损失本身不是有限值，任何损失缩放都无济于事：请检查输入，并将前向传播中溢出的部分保持在 float32。",
)
_ZERO = Text(
    "The loss is finite but these gradients are zero throughout: {paths}. They have vanished in the backward pass, or "
    "nothing depends on these weights. Scale the loss more, or compute the part after them in float32.",
    "损失是有限值，但以下梯度全为零：{paths}。它们在反向传播中下溢，或者没有任何结果依赖这些权重。请增大损失缩放，或将其"
    "之后的部分用 float32 计算。",
)
_FROZEN = Text(
    "These weights have gradients, but the update did not change one of their values: {paths}. The updates are less "
    "than half a step of their format, or divided by a loss scale that the loss was never multiplied by. "
    "Update them with split_master, kahan or stochastic_rounding.",
    "以下权重有梯度，但更新没有改变其中任何一个值：{paths}。更新量小于其格式的半个最小步长，或被一个从未乘到损失上的损失缩"
    "放除过。请用 split_master、kahan 或 stochastic_rounding 更新。",
)


def examine_gradients(loss: Any, grads: Any) -> tuple[Finding, ...]:
    """Returns what is wrong with the gradients of a step; call it outside of `jit`. Waits for the device.

    Args:
      loss: The loss, a number.
      grads: Its gradients, unscaled or not.
    """
    if not math.isfinite(float(loss)):
        return (Finding("loss_not_finite", (), _LOSS_NOT_FINITE),)
    leaves = leaf_values(grads)
    bad = tuple(leaf.path for leaf in leaves if leaf.infinite or leaf.nan)
    zero = tuple(leaf.path for leaf in leaves if leaf.values and leaf.zero == leaf.values)
    found = (("gradients_not_finite", bad, _NOT_FINITE), ("gradients_zero", zero, _ZERO))
    return tuple(Finding(code, paths, _naming(text, paths)) for code, paths, text in found if paths)


def examine_update(before: Any, after: Any, grads: Any) -> tuple[Finding, ...]:
    """Returns which weights a step has left as they were, to the bit, although they have gradients.

    Call it outside of `jit`, after a step that was not skipped. Waits for the device.

    Args:
      before: The parameters before the step.
      after: The parameters after it.
      grads: The gradients of the step; where they are zero, weights may well stay.

    Raises:
      BadInputError: The trees are not alike.
    """
    old, new, slopes = (
        [(path, leaf) for path, leaf in with_paths(tree) if is_floating(leaf)] for tree in (before, after, grads)
    )
    if not [path for path, _ in old] == [path for path, _ in new] == [path for path, _ in slopes]:
        raise BadInputError("got parameters and gradients of different trees; give those of one step")
    still = jax.device_get(
        [jnp.all(a == b) & jnp.any(g != 0) for (_, a), (_, b), (_, g) in zip(old, new, slopes, strict=True)]
    )
    frozen = tuple(path for (path, _), is_still in zip(old, still, strict=True) if is_still)
    return (Finding("weights_frozen", frozen, _naming(_FROZEN, frozen)),) if frozen else ()


def _naming(text: Text, paths: tuple[str, ...]) -> Text:
    named = ", ".join(path or "(root)" for path in paths)
    return Text(text.en.format(paths=named), text.zh.format(paths=named))
