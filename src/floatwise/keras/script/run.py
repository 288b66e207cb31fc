# SPDX-License-Identifier: Apache-2.0
"""Training a Keras script under a plan in this process, to its own end, with a word at the end about what happened."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Hashable, Sequence

from floatwise.errors import ScriptError
from floatwise.keras.script.applied import AppliedPlan
from floatwise.keras.script.iterations import Iterations
from floatwise.language import Text
from floatwise.plan import Plan
from floatwise.tap.events import Found
from floatwise.tap.execute import explain_failure, run_script
from floatwise.tap.patches import Patches

__all__ = ["run_under_plan"]

_TRAINED = Text("{recipe}: {steps} optimizer steps", "{recipe}：{steps} 个优化步")
_SKIPPED = Text(", {skipped} skipped, loss scale now {scale:g}", "，跳过 {skipped} 步，当前损失缩放 {scale:g}")
_BAD = Text("; the loss was not finite at iteration {first}", "；第 {first} 次迭代时损失不是有限值")
_NO_STEP = Text("{recipe}: the script took no optimizer step", "{recipe}：脚本没有执行任何优化步")
_NO_MODEL = Text(
    "no Keras model was trained under the plan: what the script computes without one stays in float32",
    "没有 Keras 模型在计划下训练：脚本不经模型完成的计算保持 float32",
)
_OLD_KERAS = Text(
    "the script trains with Keras 2 (tf_keras), which a plan cannot be applied to: use Keras 3 (pip install keras; "
    "leave TF_USE_LEGACY_KERAS unset)",
    "脚本使用 Keras 2（tf_keras）训练，无法应用计划：请使用 Keras 3（pip install keras；不要设置 TF_USE_LEGACY_KERAS）",
)
_UNMATCHED = Text("the plan's {globs} matched no layer", "计划中的 {globs} 没有匹配到任何层")
_REPLACED = Text(
    "{where}: the script's own {detail} is replaced by the plan", "{where}：脚本自己的 {detail} 已由计划取代"
)


class _Watch:
    """Counts steps and remembers the first loss that was not finite; tells what is replaced."""

    def __init__(self) -> None:
        self.steps = 0
        self.first_bad = 0
        self.has_loss = False
        self._told: set[Found] = set()

    def stepped(self, key: Hashable, loss: float) -> None:
        self.steps += 1
        self.has_loss |= not math.isnan(loss)
        if not math.isfinite(loss) and not self.first_bad:
            self.first_bad = self.steps

    def found(self, kind: str, where: str, detail: str) -> None:
        found = Found(kind, where, detail)
        if found not in self._told:
            self._told.add(found)
            _tell(_REPLACED.format(where=where or sys.argv[0], detail=detail))


def run_under_plan(plan: Plan, script: str, arguments: Sequence[str]) -> int:
    """Runs the script as `python script arguments` would, under the plan.

    Args:
      plan: The plan.
      script: Path of the script.
      arguments: Its own arguments.

    Returns:
      The script's own exit code.

    Raises:
      PlanError: Keras cannot be told the plan.
      ScriptError: The script failed.
    """
    patches, watch = Patches(), _Watch()
    applied = AppliedPlan(plan, watch.found)
    applied.install(patches)
    iterations = Iterations(patches, watch.stepped)
    code = 0
    try:
        run_script(script, arguments)
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except Exception as error:
        message, traceback = explain_failure(script, error)
        raise ScriptError(message, traceback) from error
    finally:
        patches.undo()
    watch.has_loss |= iterations.fitted  # elsewhere a loss that is not seen is NaN, too
    _report(plan, applied, watch)
    return code


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _report(plan: Plan, applied: AppliedPlan, watch: _Watch) -> None:
    if not watch.steps:
        _tell(_NO_STEP.format(recipe=plan.recipe))
        if "tf_keras" in sys.modules:
            _tell(str(_OLD_KERAS))
        return
    told = _TRAINED.format(recipe=plan.recipe, steps=watch.steps)
    scale = applied.loss_scale
    if scale is not None:
        told += _SKIPPED.format(skipped=applied.skipped_steps, scale=scale)
    if watch.first_bad and watch.has_loss:
        told += _BAD.format(first=watch.first_bad)
    _tell(told)
    if not applied.has_models:
        _tell(str(_NO_MODEL))
    if applied.unmatched:
        _tell(_UNMATCHED.format(globs=", ".join(applied.unmatched)))


def _tell(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"floatwise: {sentence}", file=sys.stderr)
