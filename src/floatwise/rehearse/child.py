# SPDX-License-Identifier: Apache-2.0
"""The child that rehearses an unmodified script under a plan and writes down the trial."""

from __future__ import annotations

import math
import pickle
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from floatwise.plan import Plan, loads_plan
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.float8_script import Float8Script, without_float8
from floatwise.rehearse.memory_script import ScriptStep
from floatwise.rehearse.nonfinite import OperatorSite
from floatwise.rehearse.permuted import PermutedReductions
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.script_recorder import ScriptRecorder
from floatwise.rehearse.trial import COMPARED_STEPS
from floatwise.tap.child import ScriptChild, main
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.script.applied import AppliedPlan

__all__ = ["CHILD"]


class RehearsalChild(ScriptChild):
    """Rehearses one plan.

    Options: `plan`, the plan's TOML; `known`, sites that float32 makes infinite, too; `permuted`, a seed or None;
    `record`, whether one iteration is recorded to predict memory and speed from. The trial goes to the job's
    `output`, pickled: a file between processes of one command.
    """

    module = "floatwise.rehearse.child"

    def observers(self) -> list[Observer]:
        plan = loads_plan(self.job.options["plan"])
        self.applied = AppliedPlan(without_float8(plan))
        self.float8 = Float8Script(plan) if plan.scaling is not None else None
        known = frozenset(OperatorSite(*site) for site in self.job.options.get("known", ()))
        self.recorder = ScriptRecorder(
            plan, self.paths.of, self.applied.scaling, known, survey=plan.is_float32, float8=self.float8
        )
        self.step = self._step(plan) if self.job.options.get("record") else None
        optional = (self.float8, self.step)
        return [self.applied, *(observer for observer in optional if observer is not None), self.recorder]

    def _step(self, plan: Plan) -> ScriptStep:
        # Samples of gradients are no part of a training: none are taken in the later iteration.
        return ScriptStep(plan, at=COMPARED_STEPS if self.job.steps > COMPARED_STEPS else 1)

    def existing(self, tap: Tap) -> ExistingPrecision:
        treatment = ExistingPrecision(tap, compute_dtype=self.applied.compute_dtype, compiles=False)
        self.applied.install(tap, treatment)
        if self.float8 is not None:
            self.float8.install(tap)
        stack = ExitStack()
        tap.patches.on_undo(stack.close)
        dtype = self.applied.compute_dtype
        if dtype is not None:
            stack.enter_context(MatrixUnits([dtype]))
            stack.enter_context(CudaSpecials())
        if self.job.options.get("permuted") is not None:
            stack.enter_context(PermutedReductions(int(self.job.options["permuted"])))
        stack.enter_context(self.recorder.watch)
        if self.step is not None:
            stack.enter_context(self.step.mode)
        return treatment

    def iteration_ended(self, index: int, loss: float) -> None:
        self.recorder.iteration_ended(index, loss)
        if self.step is not None:
            self.step.iteration_ended(index)
        if self.speaks:
            self.channel.send("step", index=index, loss=loss)
        if not math.isfinite(loss):
            self.done()

    def finish(self) -> dict[str, Any]:
        trial = self.recorder.trial()
        if trial is not None and self.step is not None:
            trial = replace(trial, step_record=self.step.record)
        # Not torch.save: while planning, that goes to a folder of its own.
        Path(self.job.output).write_bytes(pickle.dumps(trial))
        return {"unmatched": self.applied.unmatched}


CHILD = RehearsalChild

if __name__ == "__main__":
    main(CHILD)
