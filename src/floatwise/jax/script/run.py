# SPDX-License-Identifier: Apache-2.0
"""Training a JAX script under a plan in this process, to its own end, with a word at the end about what happened."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from types import TracebackType

import jax

from floatwise.errors import ScriptError
from floatwise.jax.script.applied import AppliedPlan
from floatwise.language import Text
from floatwise.plan import Plan
from floatwise.tap.execute import explain_failure, run_script
from floatwise.tap.patches import Patches
from floatwise.tap.step_count import StepCount

__all__ = ["UnderPlan", "run_under_plan"]

#: Updates are not seen, gradients are: of several micro-batches each counts.
_TRAINED = Text("{recipe}: {steps} gradients", "{recipe}：{steps} 次求梯度")
_SKIPPED = Text(", {skipped} skipped, loss scale now {scale:g}", "，跳过 {skipped} 步，当前损失缩放 {scale:g}")
_BAD = Text("; the loss was not finite at backward pass {first}", "；第 {first} 次反向传播时损失不是有限值")
_NO_STEP = Text(
    "{recipe}: the script computed no gradient with jax.grad or jax.value_and_grad",
    "{recipe}：脚本没有通过 jax.grad 或 jax.value_and_grad 计算任何梯度",
)
_UNMATCHED = Text("the plan's {globs} matched no module", "计划中的 {globs} 没有匹配到任何模块")
_NOT_APPLIED = Text(
    "a loss function was computed in float32, since it could not be traced: {error}",
    "有一个损失函数无法被追踪，因此仍以 float32 计算：{error}",
)
_NO_PRODUCT = Text(
    "no float32 matrix product was found in the loss: nothing was computed in {dtype}",
    "损失函数中没有找到 float32 矩阵乘法：没有任何部分以 {dtype} 计算",
)
_STUCK = Text(
    "the last {count} steps were all skipped for gradients that are not finite, at loss scale {scale:g}: {advice}",
    "最后连续 {count} 步都因梯度不是有限值而被跳过，此时损失缩放为 {scale:g}：{advice}",
)
_LOWER_START = Text(
    "start with a smaller initial_scale in [loss_scale]",
    "请在 [loss_scale] 中使用更小的 initial_scale",
)
_BAD_FORWARD = Text(
    "the loss was not finite either, which no loss scale cures; use bf16-mixed, or keep the part that overflows in "
    "float32 by an entry under [[modules]]",
    "损失本身也不是有限值，调整损失缩放无济于事；请改用 bf16-mixed，或在 [[modules]] 中让溢出的部分保持 float32",
)
_BAD_BACKWARD = Text(
    "the loss was finite, so it is the backward pass that overflows; use bf16-mixed, or keep the part that overflows "
    "in float32 by an entry under [[modules]]",
    "损失是有限值，因此溢出发生在反向传播中；请改用 bf16-mixed，或在 [[modules]] 中让溢出的部分保持 float32",
)

#: Skipped steps in a row at the end that are told of: convention; GradScaler's first scale needs at most a few.
_TOLD_SKIPS = 5


def run_under_plan(plan: Plan, script: str, arguments: Sequence[str]) -> int:
    """Runs the script as `python script arguments` would, under the plan.

    Returns:
      The script's own exit code.

    Raises:
      PlanError: This runtime cannot apply the plan.
      ScriptError: The script failed.
    """
    with UnderPlan(plan) as training:
        try:
            run_script(script, arguments)
        except SystemExit as leaving:
            return _exit_code(leaving)
        except Exception as error:
            training.tells = False
            message, traceback = explain_failure(script, error)
            raise ScriptError(message, traceback) from error
    return 0


class UnderPlan:
    """What this process differentiates with JAX is computed under a plan while this is open.

    Functions that `jax.grad`, `jax.value_and_grad` or `jax.jit` made before it was opened are not.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tells = True
        self._watch = _Watch()
        self._applied = AppliedPlan(plan, self._watch.gradient)
        self._patches = Patches()

    def __enter__(self) -> UnderPlan:
        self._applied.install(self._patches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.tells:
                self._applied.settle()
        finally:
            self._patches.undo()
        if self.tells and jax.process_index() == 0:
            _report(self.plan, self._applied, self._watch)


class _Watch:
    """Counts steps and remembers the first loss that was not finite."""

    def __init__(self) -> None:
        self.gradients = self.first_bad = self.steps = 0
        self._count = StepCount(self._ended)

    def gradient(self, key: Hashable, loss: float) -> None:
        self.gradients += 1
        if not math.isfinite(loss) and not self.first_bad:
            self.first_bad = self.gradients
        self._count.stepped(key, loss)

    def _ended(self, index: int, loss: float) -> None:
        self.steps = index + 1


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _report(plan: Plan, applied: AppliedPlan, watch: _Watch) -> None:
    if not watch.steps:
        _tell(_NO_STEP.format(recipe=plan.recipe))
        return
    told = _TRAINED.format(recipe=plan.recipe, steps=watch.steps)
    scale = applied.scaling.report() if applied.scaling is not None else None
    if scale is not None:
        told += _SKIPPED.format(skipped=scale.skipped_steps, scale=scale.scale)
    if watch.first_bad:
        told += _BAD.format(first=watch.first_bad)
    _tell(told)
    if scale is not None and scale.consecutive_skips >= _TOLD_SKIPS:
        advice = _LOWER_START if scale.can_fall else _BAD_FORWARD if scale.loss_was_bad else _BAD_BACKWARD
        _tell(_STUCK.format(count=scale.consecutive_skips, scale=scale.scale, advice=advice.format()))
    for error in applied.not_applied.values():
        _tell(_NOT_APPLIED.format(error=error))
    if applied.found_no_product and not applied.not_applied:
        _tell(_NO_PRODUCT.format(dtype=plan.compute_dtype))
    if applied.unmatched:
        _tell(_UNMATCHED.format(globs=", ".join(applied.unmatched)))


def _tell(sentence: str) -> None:
    print(f"floatwise: {sentence}", file=sys.stderr)
