# SPDX-License-Identifier: Apache-2.0
"""A callback that tells how the loss scale fares, and stops training before it is lost."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from floatwise.errors import BadInputError, NonFiniteGradientsError
from floatwise.keras.scale_state import ScaleState, computes_in_float16, read_state, times_wrapped
from floatwise.language import Text

__all__ = ["Monitor"]

_UNSCALED = Text(
    "{count} layers compute in float16, such as {name!r}, and {optimizer} does not scale the loss: small gradients "
    "become zero. Call floatwise.keras.apply(model, plan), or wrap the optimizer in floatwise.keras.LossScaleOptimizer",
    "有 {count} 个层以 float16 计算（例如 {name!r}），而 {optimizer} 不缩放损失：较小的梯度会变为零。"
    "请调用 floatwise.keras.apply(model, plan)，或用 floatwise.keras.LossScaleOptimizer 包装优化器",
)
_TWICE = Text(
    "{count} loss-scale optimizers are wrapped in one another: gradients are divided by every scale, and weights "
    "hardly move. Call floatwise.keras.apply(model, plan), or wrap once",
    "优化器被损失缩放包装了 {count} 次：梯度会被每个系数相除，权重几乎不动。"
    "请调用 floatwise.keras.apply(model, plan)，或只包装一次",
)
_LOW = Text(
    "the loss scale is down to {scale:g} after {skips} skipped steps in a row",
    "连续跳过 {skips} 步后，损失缩放系数已降到 {scale:g}",
)
_STOPPED = Text(
    "training was stopped: {skips} steps in a row were skipped for gradients that are not finite, at loss scale "
    "{scale:g}. The weights are those of the last good step",
    "训练已停止：连续 {skips} 步因梯度非有限值而被跳过，损失缩放系数为 {scale:g}。权重停留在最后一次正常更新",
)
_BAD_LOSS = Text(
    "The loss is not finite either, which no loss scale cures: look for NaN or values above 65504 in the inputs, keep "
    "the layer where the forward pass first overflows in float32 by an entry of the plan, or use bf16-mixed",
    "损失本身也不是有限值，损失缩放无法解决：请检查输入中是否有 NaN 或超过 65504 的值，"
    "在计划中让前向最先溢出的层保持 float32，或使用 bf16-mixed",
)
_BAD_BACKWARD = Text(
    "The loss is finite, so they arise in the backward pass: keep softmax, normalizations and what makes the output in "
    "float32 by entries of the plan, or use bf16-mixed",
    "损失是有限值，问题出在反向传播：请在计划中让 softmax、归一化和输出层保持 float32，或使用 bf16-mixed",
)
_ALL_ZERO = Text(
    "every gradient was zero for {steps} steps: nothing is learned. Look for a softmax or sigmoid that is saturated in "
    "float16, dead activations, or a loss scale far too small",
    "连续 {steps} 步所有梯度均为零：模型没有在学习。请检查 float16 下饱和的 softmax 或 sigmoid、失活的激活函数，"
    "或过小的损失缩放系数",
)

# Chosen: a dead batch may happen; this many in a row are a dead model.
_ZERO_STEPS = 10


@dataclass
class _Seen:
    """What was seen since training began; `made` steps until the last look, `unread` batches after it."""

    model: Any = None
    made: int = 0
    unread: int = 0
    last_batch: int = -1
    skipped: int = 0
    skips_in_a_row: int = 0
    zero_steps: int = 0
    state: ScaleState | None = None
    told: set[str] = field(default_factory=set)


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Watches the loss scale during `fit`.

    It adds `loss_scale`, `skipped_steps` (since training began) and, with our optimizer, `zero_gradients` (the share of
    the last step, 0 to 1) to each epoch's logs, so that the history and the progress bar show them. It warns when
    float16 layers train without a loss scale, when the scale is taken out more than once, at the first skip at the
    floor, and when all gradients are zero. Keras' own loss-scale optimizer has no floor; there 1 counts as one.

    Args:
      stop_after: Skipped steps in a row after which training stops. Default: 25, because 24 overflows take the scale
        from the default ceiling to the default floor; Keras' own falls to 0 after 142. None never stops.
      every: Batches between two looks, each of which waits for the device. Default: 1.
      raises: Whether to raise instead of setting `model.stop_training` and warning.

    Attributes:
      stopped: Why training was stopped; empty when it was not.

    Raises:
      BadInputError: `stop_after` or `every` is not positive.
      NonFiniteGradientsError: In training, with `raises`, after `stop_after` skips in a row.
    """

    def __init__(self, stop_after: int | None = 25, every: int = 1, raises: bool = False) -> None:
        super().__init__()
        for name, value in (("stop_after", stop_after), ("every", every)):
            if value is not None and value < 1:
                raise BadInputError(f"got {name} {value!r}; expected 1 or more")
        self.stop_after, self.every, self.raises = stop_after, every, raises
        self.stopped = ""
        self._seen = _Seen()

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped since training began."""
        return self._seen.skipped

    @property
    def consecutive_skips(self) -> int:
        """How many of the last steps in a row were skipped, as far as looks tell."""
        return self._seen.skips_in_a_row

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Warns of a loss scale that is missing or taken out twice."""
        model = self.model
        wrapped = times_wrapped(model.optimizer)
        if wrapped > 1:
            warnings.warn(_TWICE.format(count=wrapped), stacklevel=2)
        low = computes_in_float16(model)
        if low and not wrapped and getattr(model.optimizer, "loss_scale_factor", None) is None:
            text = _UNSCALED.format(count=len(low), name=low[0], optimizer=type(model.optimizer).__name__)
            warnings.warn(text, stacklevel=2)
        self.stopped = ""
        # Asking for `self.model` in the middle of an epoch copies all variables on the JAX backend.
        self._seen = _Seen(model=model, made=read_state(model).iterations)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Looks at the scale; warns and stops as the class says."""
        seen = self._seen
        # With steps_per_execution only the last batch of an execution is told.
        seen.unread += batch - seen.last_batch if batch > seen.last_batch else batch + 1
        seen.last_batch = batch
        if seen.unread < self.every:
            return
        state = seen.state = read_state(seen.model)
        made, seen.made = state.iterations - seen.made, state.iterations
        batches, seen.unread = seen.unread, 0
        if state.scale is None:
            return
        seen.skipped += batches - made
        seen.skips_in_a_row = 0 if made else seen.skips_in_a_row + batches
        seen.zero_steps = seen.zero_steps + batches if made and state.zero_share == 1.0 else 0
        self._tell(state, logs or {})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds what was seen to the logs."""
        self._seen.last_batch = -1
        state = self._seen.state
        if logs is not None and state is not None and state.scale is not None:
            logs["loss_scale"] = state.scale
            logs["skipped_steps"] = self.skipped_steps
            if state.zero_share is not None:
                logs["zero_gradients"] = state.zero_share

    def _tell(self, state: ScaleState, logs: Mapping[str, Any]) -> None:
        scale, skips = state.scale or 0.0, self.consecutive_skips
        values = [float(value) for key, value in logs.items() if key == "loss"]
        advice = str(_BAD_BACKWARD if all(map(math.isfinite, values)) else _BAD_LOSS)
        if self.stop_after is not None and skips >= self.stop_after and not self.stopped:
            self.stopped = f"{_STOPPED.format(skips=skips, scale=scale)}. {advice}"
            if self.raises:
                raise NonFiniteGradientsError(self.stopped, (), skips)
            self._seen.model.stop_training = True
            warnings.warn(self.stopped, stacklevel=3)
        elif skips and scale <= (state.floor or 1.0):
            self._warn_once("low", f"{_LOW.format(scale=scale, skips=skips)}. {advice}")
        if self._seen.zero_steps >= _ZERO_STEPS:
            self._warn_once("zero", _ALL_ZERO.format(steps=self._seen.zero_steps))

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._seen.told:
            self._seen.told.add(what)
            warnings.warn(text, stacklevel=4)
