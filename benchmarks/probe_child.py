# SPDX-License-Identifier: Apache-2.0
"""A recording child that takes turns and tells how long its iterations took."""

from __future__ import annotations

import time

from floatwise.probe.child import RecordingChild
from floatwise.tap.child import main
from floatwise.tap.events import Observer
from floatwise.torch.script.child import WARM_UP_ITERATIONS


class TimedRecordingChild(RecordingChild):
    """Times what the probe costs, its work at the end of an iteration included."""

    module = "probe_child"

    def observers(self) -> list[Observer]:
        """The probe; the time starts now."""
        self.started = time.perf_counter()
        return super().observers()

    def iteration_ended(self, index: int, loss: float) -> None:
        """Works off the iteration, then reports its time."""
        self.probe.end_iteration()
        seconds = time.perf_counter() - self.started
        self.channel.send("step", index=index, loss=loss, seconds=seconds, timed=index >= WARM_UP_ITERATIONS)
        if index + 1 < self.job.steps:
            self.channel.wait()
        self.started = time.perf_counter()


CHILD = TimedRecordingChild

if __name__ == "__main__":
    main(CHILD)
