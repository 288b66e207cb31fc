# SPDX-License-Identifier: Apache-2.0
"""Training runs that take turns, one iteration each, and the ratios of their times."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from floatwise.hardware import best_here
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Runner:
    """One of the runs: the module of its child process, and its job."""

    module: str
    job: Job
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int | None = None

    def take(self, child: Child) -> bool:
        """Takes one message; False when the run is over."""
        message = child.next()
        while message["event"] == "started":
            message = child.next()
        if message["event"] == "done":
            self.peak_bytes = message.get("peak_bytes")
            return False
        self.losses.append(float(message["loss"]))
        if message["timed"]:
            self.seconds.append(float(message["seconds"]))
        return True


def in_turn(runners: Mapping[str, Runner]) -> None:
    """Runs all to their end, an iteration of each in turn."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    with ExitStack() as stack:
        children = {}
        for name, runner in runners.items():
            children[name] = stack.enter_context(Child(runner.module, runner.job, name))
            runner.take(children[name])
        order, going = list(runners), True
        while going:
            order = [*order[1:], order[0]]  # whoever comes first after a pause pays for it: each in turn
            for name in order:
                children[name].go()
                going = runners[name].take(children[name])
            runner = runners[order[0]]
            print(f"\r{len(runner.losses)} iterations", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def ratio(numerator: Runner, denominator: Runner) -> tuple[float, float, float]:
    """Returns the median of the pairwise ratios of their times, and the quartiles."""
    ratios = [a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, low, high


def machine() -> str:
    """Names the machine beside the figures."""
    import torch

    here = best_here()
    device = here.device.name if here.device is not None else "unknown device"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{here.reported_name} ({device}), {here.cores} cores, {versions}"
