# SPDX-License-Identifier: Apache-2.0
"""The child that rehearses an unmodified script under a plan and writes down the trial."""

from __future__ import annotations

import math
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from floatwise.plan import loads_plan
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.permuted import PermutedReductions
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.script_recorder import ScriptRecorder
from floatwise.rehearse.watch import OperatorSite
from floatwise.tap.child import ScriptChild, main
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.script.applied import AppliedPlan

__all__ = ["CHILD"]


class RehearsalChild(ScriptChild):
    """Options: `plan`, the plan's TOML; `known`, sites that float32 makes infinite, too; `permuted`, a seed or None.

    The trial goes to the job's `output`, pickled: a file between processes of one command.
    """

    module = "floatwise.rehearse.child"

    def observers(self) -> list[Observer]:
        plan = loads_plan(self.job.options["plan"])
        self.applied = AppliedPlan(plan)
        known = frozenset(OperatorSite(*site) for site in self.job.options.get("known", ()))
        self.recorder = ScriptRecorder(plan, self.paths.of, self.applied.scaling, known, survey=plan.is_float32)
        return [self.applied, self.recorder]

    def existing(self, tap: Tap) -> ExistingPrecision:
        treatment = ExistingPrecision(tap, compute_dtype=self.applied.compute_dtype)
        self.applied.install(tap, treatment)
        stack = ExitStack()
        tap.patches.on_undo(stack.close)
        dtype = self.applied.compute_dtype
        if dtype is not None:
            stack.enter_context(MatrixUnits([dtype]))
            stack.enter_context(CudaSpecials())
        if self.job.options.get("permuted") is not None:
            stack.enter_context(PermutedReductions(int(self.job.options["permuted"])))
        stack.enter_context(self.recorder.watch)
        return treatment

    def iteration_ended(self, index: int, loss: float) -> None:
        self.recorder.iteration_ended(index, loss)
        if self.speaks:
            self.channel.send("step", index=index, loss=loss)
        if not math.isfinite(loss):
            self.done()

    def finish(self) -> dict[str, Any]:
        trial = self.recorder.trial()
        # Not torch.save: while planning, that goes to a folder of its own.
        Path(self.job.output).write_bytes(pickle.dumps(trial))
        return {"unmatched": self.applied.unmatched}


CHILD = RehearsalChild

if __name__ == "__main__":
    main(CHILD)
