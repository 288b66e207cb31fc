# SPDX-License-Identifier: Apache-2.0
"""The common part of every child: run the job's script under a tap, report, stop after its last wanted iteration."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Any

import torch

from floatwise.tap.channel import Channel
from floatwise.tap.clock import IterationClock
from floatwise.tap.core import Tap
from floatwise.tap.events import Found, Observer
from floatwise.tap.execute import explain_failure, run_script
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.frameworks import recognise_trainers
from floatwise.tap.job import Job
from floatwise.tap.launcher import expects_launcher, restart_as_one_process, started_as_one_process
from floatwise.tap.orphan import leave_with_parent
from floatwise.tap.paths import ModulePaths
from floatwise.tap.scratch import keep_checkpoints_aside
from floatwise.tap.seeding import seed_everything
from floatwise.tap.spawned import Spawned, follow_spawned_processes
from floatwise.tap.stop import stop_process

__all__ = ["ScriptChild"]


class _Notes(Observer):
    """Keeps what was found and what ran, for the report and for the explanation of a run without steps."""

    def __init__(self) -> None:
        self.all_found: list[Found] = []
        self.calls = 0

    def root_entered(self, root: Any, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs

    def found(self, what: Found) -> None:
        self.all_found.append(what)


class ScriptChild(ABC):
    """One child process; the rooms that need one say what it observes and what it reports.

    Args:
      job: What the parent asked for.
      spawned: Set when this process was started by the script: None for the script's own process.
    """

    #: Module that is run as `python -m`; spawned processes load it again.
    module: str

    def __init__(self, job: Job, spawned: Spawned | None = None) -> None:
        self.job = job
        self.spawned = spawned
        self.starts_processes = False  # with `multiprocessing`, DataLoader workers included
        self.channel = Channel()
        self.paths = ModulePaths()
        self.notes = _Notes()
        self.clock = IterationClock(self._iteration)

    @property
    def speaks(self) -> bool:
        """False in a spawned process that is not the first: it only keeps step with the one that reports."""
        return self.spawned is None or self.spawned.rank == 0

    @abstractmethod
    def observers(self) -> list[Observer]:
        """Returns the child's own observers; the clock comes after them."""

    @abstractmethod
    def existing(self, tap: Tap) -> ExistingPrecision:
        """Returns how the script's own mixed precision is treated."""

    @abstractmethod
    def iteration_ended(self, index: int, loss: float) -> None:
        """Reports one iteration."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Writes the result and returns what the parent is told at the end."""

    def open_tap(self) -> Tap:
        """Opens the tap in this process for the rest of its life."""
        tap = Tap([*self.observers(), self.notes, self.clock], self.paths)
        tap.__enter__()
        existing = self.existing(tap)
        existing.install()
        recognise_trainers(existing)
        if self.job.scratch:
            keep_checkpoints_aside(tap, self.job.scratch)
        seed_everything(self.job.seed, self.job.seed_offset, tap.patches)
        return tap

    def main(self) -> None:
        """Runs the script; never returns."""
        self.channel.send("started")
        tap = self.open_tap()
        follow_spawned_processes(tap, self)
        if started_as_one_process():
            tap.report(Found("found_launcher", "", "torchrun"))
        own = os.getpid()
        try:
            run_script(self.job.script, self.job.arguments)
        except BaseException as error:
            if os.getpid() != own:
                raise  # a process that the script forked ends on its own terms
            if expects_launcher(error) and not self.clock.iterations:
                restart_as_one_process()
            if not self._ended_after_training(error):
                message, traceback = explain_failure(self.job.script, error)
                self.channel.send("failed", message=message, traceback=traceback)
                stop_process()
        if os.getpid() != own:
            sys.exit(0)
        tap.steps.notice_update_by_hand()
        self.done()

    def done(self) -> None:
        """Reports the result and ends the process."""
        if self.speaks:
            if self.spawned is not None:
                self.spawned.reported.set()
            if self.clock.iterations:
                self.channel.send("done", **self.finish())
            else:
                self.channel.send("failed", message=self._never_stepped(), traceback="")
        stop_process()

    def _iteration(self, index: int, loss: float) -> None:
        self.iteration_ended(index, loss)
        if index + 1 >= self.job.steps:
            self.done()

    def _ended_after_training(self, error: BaseException) -> bool:
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            code = getattr(error, "code", None)
            return self.clock.iterations > 0 or code in (None, 0)
        return False

    def _never_stepped(self) -> str:
        backwards, calls = self.clock.backwards, self.notes.calls
        told = f"{self.job.script} ended without a training step: {calls} module calls, {backwards} backward passes"
        if backwards:
            return f"{told}, and no parameter changed: it must step an optimizer, or update its parameters in place"
        if self.clock.steps_without_gradient:
            return f"{told}; its optimizer stepped, but no parameter had a gradient: does it call loss.backward()?"
        if self.starts_processes:
            told += (
                "; it starts processes of its own: those of torch.multiprocessing.spawn are followed, "
                "those of multiprocessing.Process are not"
            )
        hint = "give Floatwise the script that trains, with its arguments after --"
        return f"{told}\n{hint} (floatwise plan train.py -- --epochs 1)"


def main(child: type[ScriptChild]) -> None:
    """Entry of a child module: reads the job file named on the command line."""
    leave_with_parent()
    torch.set_num_threads(torch.get_num_threads())  # fixes the number before the script forks workers
    child(Job.load(sys.argv[1])).main()
