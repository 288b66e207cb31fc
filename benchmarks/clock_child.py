# SPDX-License-Identifier: Apache-2.0
"""A child that only times a script: nothing in it is replaced, its own precision stays."""

from __future__ import annotations

from floatwise.plan import dumps_plan, recipe
from floatwise.tap.child import main
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.job import Job
from floatwise.torch.script.child import TrainingChild


class Untouched(ExistingPrecision):
    """The script's own precision, left as it is."""

    def install(self) -> None:
        """Replaces nothing."""


class ClockChild(TrainingChild):
    """Times the script as it is."""

    module = "clock_child"

    def observers(self) -> list[Observer]:
        """Nothing but the clock."""
        super().observers()
        return []

    def existing(self, tap: Tap) -> ExistingPrecision:
        """Nothing is replaced."""
        return Untouched(tap)


CHILD = ClockChild


def job(script: str, arguments: tuple[str, ...], steps: int) -> Job:
    """Returns the job of timing a script as it is."""
    return Job(script, arguments, steps, paced=True, options={"plan": dumps_plan(recipe("fp32")), "memory": False})


if __name__ == "__main__":
    main(CHILD)
