# SPDX-License-Identifier: Apache-2.0
"""The child that trains a Keras script under a plan and is timed: float32 and the plan run in two of these, in turn."""

from __future__ import annotations

import sys
import time
from typing import Any

from floatwise.keras.script.applied import AppliedPlan
from floatwise.keras.script.iterations import Iterations
from floatwise.keras.script.seeds import seed_keras
from floatwise.plan import loads_plan
from floatwise.tap.plain_child import PlainChild, main

__all__ = ["CHILD", "WARM_UP_ITERATIONS"]

#: Iterations that are not timed: the first compiles, and as many as in PyTorch's child are left to caches and threads.
WARM_UP_ITERATIONS = 3


class TrainingChild(PlainChild):
    """Options: `plan`, the plan's TOML. Peak memory is not known: backends keep what they have once asked for."""

    module = "floatwise.keras.script.child"

    def prepare(self) -> None:
        self.started = time.perf_counter()
        seed_keras(self.patches, self.job.seed, self.job.seed_offset)
        self.applied = AppliedPlan(loads_plan(self.job.options["plan"]), self.found)
        self.applied.install(self.patches)
        self.iterations = Iterations(self.patches, self.stepped)

    def iteration_ended(self, index: int, loss: float) -> None:
        seconds = time.perf_counter() - self.started
        self.channel.send("step", index=index, loss=loss, seconds=seconds, timed=index >= WARM_UP_ITERATIONS)
        if self.job.paced and index + 1 < self.job.steps:
            self.channel.wait()
        self.started = time.perf_counter()

    def finish(self) -> dict[str, Any]:
        return {
            "peak_bytes": None,
            "skipped_steps": self.applied.skipped_steps,
            "unmatched": self.applied.unmatched,
            "products": self.applied.census.to_message() if self.job.paced else None,
        }

    def never_stepped(self) -> str:
        told = f"{self.job.script} ended without a training step"
        if "tf_keras" in sys.modules:
            return (
                f"{told} of Keras 3; it uses Keras 2 (tf_keras), which a plan cannot be applied to\nuse Keras 3: pip "
                "install keras, and leave TF_USE_LEGACY_KERAS unset"
            )
        made = f"it made {self.iterations.models} Keras models" if self.iterations.models else "it made no Keras model"
        return (
            f"{told}: {made}, and fit, train_on_batch and an optimizer's apply were never called\n"
            "give Floatwise the script that trains, with its arguments after -- (floatwise plan train.py -- --epochs 1)"
        )


CHILD = TrainingChild

if __name__ == "__main__":
    main(CHILD)
