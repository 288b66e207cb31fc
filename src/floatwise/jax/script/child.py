# SPDX-License-Identifier: Apache-2.0
"""The child that trains a JAX script under a plan and times every iteration."""

from __future__ import annotations

import time
from typing import Any

import jax
from typing_extensions import override

from floatwise.jax.script.applied import AppliedPlan
from floatwise.jax.script.step_census import StepCensus
from floatwise.plan import loads_plan
from floatwise.tap.execute import shift_seeds
from floatwise.tap.plain_child import PlainChild, main

__all__ = ["CHILD", "WARM_UP_ITERATIONS"]

#: Iterations that are not timed: the first compiles the step, and the next may compile it again for the layouts and
#: weak types that it gave its own results.
WARM_UP_ITERATIONS = 3


class TrainingChild(PlainChild):
    """Options: `plan`, the plan's TOML.

    An iteration ends with the compiled call that takes its gradients (`GradientReports`); outside of `jit` when these
    are computed. What is timed is all that the script does from one end to the next.
    """

    module = "floatwise.jax.script.child"

    @override
    def prepare(self) -> None:
        self.census = StepCensus()
        self.applied = AppliedPlan(
            loads_plan(self.job.options["plan"]),
            self.stepped,
            waits=True,
            on_training_call=self.census.look if self.job.paced else None,
        )
        self.applied.install(self.patches)
        if self.job.seed_offset:
            for name in ("key", "PRNGKey"):
                shift_seeds(self.patches, jax.random, name, self.job.seed_offset)
        self.started = time.perf_counter()

    @override
    def iteration_ended(self, index: int, loss: float) -> None:
        seconds = time.perf_counter() - self.started
        self.channel.send("step", index=index, loss=loss, seconds=seconds, timed=index >= WARM_UP_ITERATIONS)
        if self.job.paced and index + 1 < self.job.steps:
            self.channel.wait()
        self.started = time.perf_counter()

    @override
    def settle(self) -> None:
        self.applied.settle()

    @override
    def finish(self) -> dict[str, Any]:
        scaling = self.applied.scaling
        return {
            "peak_bytes": None,
            "skipped_steps": scaling.report().skipped_steps if scaling is not None else 0,
            "unmatched": self.applied.unmatched,
            "products": self.census.to_message(),
        }

    @override
    def never_stepped(self) -> str:
        return (
            f"{self.job.script} ended without a training step: it computed no gradient with jax.grad or "
            "jax.value_and_grad\ngive Floatwise the script that trains, with its arguments after -- "
            "(floatwise plan train.py -- --epochs 1)"
        )


CHILD = TrainingChild

if __name__ == "__main__":
    main(CHILD)
