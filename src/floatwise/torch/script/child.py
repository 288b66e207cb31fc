# SPDX-License-Identifier: Apache-2.0
"""The child that trains under a plan and is timed: float32 and the plan run in two of these, in turn."""

from __future__ import annotations

import time
from typing import Any

import torch

from floatwise.plan import loads_plan
from floatwise.tap.child import ScriptChild, main
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch.script.applied import AppliedPlan
from floatwise.torch.script.peak_memory import PeakMemoryMeter

__all__ = ["CHILD", "WARM_UP_ITERATIONS"]

#: Iterations that are not timed: the first makes optimizer states, and then memory is watched for two.
WARM_UP_ITERATIONS = 3


class TrainingChild(ScriptChild):
    """Options: `plan`, the plan's TOML; `memory`, False to leave the peak unmeasured."""

    module = "floatwise.torch.script.child"

    def observers(self) -> list[Observer]:
        self.applied = AppliedPlan(loads_plan(self.job.options["plan"]))
        self.meter = PeakMemoryMeter()
        self.watches_memory = bool(self.job.options.get("memory", True))
        self.started = time.perf_counter()
        return [self.applied]

    def existing(self, tap: Tap) -> ExistingPrecision:
        treatment = ExistingPrecision(tap, compute_dtype=self.applied.compute_dtype)
        self.applied.install(tap, treatment)
        return treatment

    def iteration_ended(self, index: int, loss: float) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self.started
        if self.watches_memory:
            self._measure_memory(index)
        if self.speaks:
            self.channel.send("step", index=index, loss=loss, seconds=seconds, timed=index >= WARM_UP_ITERATIONS)
            if self.job.paced and index + 1 < self.job.steps:
                self.channel.wait()
        self.started = time.perf_counter()

    def finish(self) -> dict[str, Any]:
        scaler = self.applied.scaling.scaler if self.applied.scaling is not None else None
        return {
            "peak_bytes": self.meter.peak_bytes,
            "skipped_steps": scaler.skipped_steps if scaler is not None else 0,
            "unmatched": self.applied.unmatched,
        }

    def _measure_memory(self, index: int) -> None:
        if index == 0:
            self.meter.begin()
        elif index == 1:
            self.meter.mark()
        elif index == WARM_UP_ITERATIONS - 1:
            self.meter.end()


CHILD = TrainingChild

if __name__ == "__main__":
    main(CHILD)
