# SPDX-License-Identifier: Apache-2.0
"""A child without a framework: runs the job's script, reports, stops after its last wanted iteration."""

from __future__ import annotations

import os
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

from floatwise.tap.channel import Channel
from floatwise.tap.events import Found
from floatwise.tap.execute import explain_failure, run_script, shift_seeds
from floatwise.tap.job import Job
from floatwise.tap.orphan import leave_with_parent
from floatwise.tap.patches import Patches
from floatwise.tap.step_count import StepCount
from floatwise.tap.stop import stop_process

__all__ = ["PlainChild", "main"]


class PlainChild(ABC):
    """One child process; the rooms that need one say what they replace before the script starts, and what they report.

    A framework's part calls `stepped` at the end of every update (or of every gradient, where updates are unseen), in
    any thread.

    Args:
      job: What the parent asked for.
    """

    #: Module that is run as `python -m`.
    module: str

    def __init__(self, job: Job) -> None:
        self.job = job
        self.channel = Channel()
        self.patches = Patches()
        self.all_found: list[Found] = []
        self.count = StepCount(self._iteration)

    @abstractmethod
    def prepare(self) -> None:
        """Replaces what has to be replaced, seeds the framework; the script starts next."""

    @abstractmethod
    def iteration_ended(self, index: int, loss: float) -> None:
        """Reports one iteration, counted from 0; `loss` is NaN when there was none."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Writes the result and returns what the parent is told at the end."""

    @abstractmethod
    def never_stepped(self) -> str:
        """Returns what was seen of a script that took no training step, and what to do."""

    def settle(self) -> None:  # noqa: B027
        """The script has ended by itself; what is still under way may be waited for."""

    def stepped(self, key: Hashable, loss: float) -> None:
        """Tells that what `key` names has updated, with this loss (NaN when there was none)."""
        self.count.stepped(key, loss)

    def found(self, kind: str, where: str, detail: str) -> None:
        """Keeps what the script already does about precision, each once."""
        found = Found(kind, where, detail)
        if found not in self.all_found:
            self.all_found.append(found)

    def main(self) -> None:
        """Runs the script; never returns."""
        self.channel.send("started")
        self.seed()
        own = os.getpid()
        try:
            self.prepare()
            run_script(self.job.script, self.job.arguments)
            self.settle()
        except BaseException as error:
            if os.getpid() != own:
                raise  # a process that the script forked ends on its own terms
            if not self._ended_well(error):
                message, traceback = explain_failure(self.job.script, error)
                self.channel.send("failed", message=message, traceback=traceback)
                stop_process()
            self.settle()
        if os.getpid() != own:
            sys.exit(0)
        self.done()

    def seed(self) -> None:
        """Seeds Python and NumPy, and adds the job's offset to the seeds that the script sets later."""
        import numpy

        seed = self.job.seed + self.job.seed_offset
        random.seed(seed)
        numpy.random.seed(seed)
        if self.job.seed_offset:
            shift_seeds(self.patches, random, "seed", self.job.seed_offset)
            shift_seeds(self.patches, numpy.random, "seed", self.job.seed_offset)
            shift_seeds(self.patches, numpy.random, "default_rng", self.job.seed_offset)

    def done(self) -> None:
        """Reports the result and ends the process."""
        if self.count.iterations:
            self.channel.send("done", **self.finish())
        else:
            self.channel.send("failed", message=self.never_stepped(), traceback="")
        stop_process()

    def _iteration(self, index: int, loss: float) -> None:
        self.iteration_ended(index, loss)
        if index + 1 >= self.job.steps:
            self.done()

    def _ended_well(self, error: BaseException) -> bool:
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return self.count.iterations > 0 or getattr(error, "code", None) in (None, 0)
        return False


def main(child: type[PlainChild]) -> None:
    """Entry of a child module: reads the job file named on the command line."""
    leave_with_parent()
    child(Job.load(sys.argv[1])).main()
