# SPDX-License-Identifier: Apache-2.0
"""Training a script under a plan in this process, to its own end, with a word at the end about what happened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from floatwise.errors import ScriptError
from floatwise.language import Text
from floatwise.plan import Plan, dumps_plan, loads_plan
from floatwise.tap.core import Tap
from floatwise.tap.events import Found, Observer
from floatwise.tap.execute import explain_failure, run_script
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.frameworks import recognise_trainers
from floatwise.tap.spawned import wrap_spawned
from floatwise.torch.script.applied import AppliedPlan

__all__ = ["UnderPlan", "run_under_plan"]

_TRAINED = Text("{recipe}: {steps} optimizer steps", "{recipe}：{steps} 个优化步")
_SKIPPED = Text(", {skipped} skipped, loss scale now {scale:g}", "，跳过 {skipped} 步，当前损失缩放 {scale:g}")
_BAD = Text("; the loss was not finite at backward pass {first}", "；第 {first} 次反向传播时损失不是有限值")
_NO_STEP = Text("{recipe}: the script took no optimizer step", "{recipe}：脚本没有执行任何优化步")
_UNMATCHED = Text("the plan's {globs} matched no module", "计划中的 {globs} 没有匹配到任何模块")
_REPLACED = Text(
    "{where}: the script's own {detail} is replaced by the plan", "{where}：脚本自己的 {detail} 已由计划取代"
)


class _Watch(Observer):
    """Counts steps and remembers the first loss that was not finite, without waiting for the device."""

    def __init__(self) -> None:
        self.steps = 0
        self.elsewhere = False  # training happens in processes that the script spawns
        self._backwards = 0
        self._first_bad: Tensor | None = None

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self._backwards += 1
        for root in roots:
            bad = ~root.detach().isfinite().all()
            now = torch.where(bad, self._backwards, 0)
            if self._first_bad is None or self._first_bad.device != now.device:
                self._first_bad = now
            else:
                self._first_bad = torch.where(self._first_bad == 0, now, self._first_bad)

    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.steps += 1

    def found(self, what: Found) -> None:
        if what.kind != "found_compile":
            _tell(_REPLACED.format(where=what.where, detail=what.detail))

    @property
    def first_bad(self) -> int:
        """Number of the first backward pass from a non-finite loss; 0 for none."""
        return int(self._first_bad) if self._first_bad is not None else 0


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
    """All of this process trains under a plan while this is open; on leaving it says what happened.

    Raises:
      PlanError: This runtime cannot apply the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tells = True
        self._applied, self._watch = AppliedPlan(plan), _Watch()
        self._tap = Tap([self._applied, self._watch])

    def __enter__(self) -> UnderPlan:
        tap = self._tap.__enter__()
        existing = ExistingPrecision(tap, compute_dtype=self._applied.compute_dtype)
        existing.install()
        recognise_trainers(existing)
        self._applied.install(tap, existing)
        wrap_spawned(tap.patches, lambda function: _SpawnedUnderPlan(function, dumps_plan(self.plan), self._watch))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tap.steps.notice_update_by_hand()
        if self._applied.scaling is not None:
            self._applied.scaling.settle()
        self._tap.__exit__(kind, error, trace)
        if self.tells:
            _report(self.plan, self._applied, self._watch)


class _SpawnedUnderPlan:
    """A picklable stand-in for a function that the script spawns; the first process says what happened."""

    def __init__(self, function: Callable[..., Any], plan: str, watch: _Watch) -> None:
        self.function, self.plan = function, plan
        watch.elsewhere = True

    def __call__(self, rank: int, *args: Any) -> Any:
        with UnderPlan(loads_plan(self.plan)) as training:
            training.tells = rank == 0
            return self.function(rank, *args)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


def _report(plan: Plan, applied: AppliedPlan, watch: _Watch) -> None:
    if not watch.steps:
        if watch.elsewhere:
            return
        _tell(_NO_STEP.format(recipe=plan.recipe))
        return
    told = _TRAINED.format(recipe=plan.recipe, steps=watch.steps)
    scaler = applied.scaling.scaler if applied.scaling is not None else None
    if scaler is not None:
        told += _SKIPPED.format(skipped=scaler.skipped_steps, scale=scaler.get_scale())
    if watch.first_bad:
        told += _BAD.format(first=watch.first_bad)
    _tell(told)
    if applied.unmatched:
        _tell(_UNMATCHED.format(globs=", ".join(applied.unmatched)))


def _tell(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"floatwise: {sentence}", file=sys.stderr)
