# SPDX-License-Identifier: Apache-2.0
"""Children that take turns; one that fails leaves the others be, and groups keep within memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt_sizes import SIZES
from turns import Runner
from variant_child import job
from variants import REFERENCES

from floatwise.errors import ScriptError
from floatwise.tap.launch import Child

__all__ = ["Contestant", "losses_of_seeds", "take_turns", "train_in_groups"]


@dataclass
class Contestant(Runner):
    """A run and its end: `result` is what its process measured, `failed` why it has none."""

    result: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    def take(self, child: Child) -> bool:
        """Takes one message; False when the run is over, well or not."""
        try:
            message = child.next()
        except ScriptError as error:
            self.failed = str(error).strip().splitlines()[0]
            return False
        if message["event"] == "done":
            self.result = message
            return False
        self.losses.append(float(message["loss"]))
        if message["timed"]:
            self.seconds.append(float(message["seconds"]))
        return True


def train_in_groups(size: str, variants: Sequence[str], steps: int) -> Iterator[dict[str, Contestant]]:
    """Trains variants of one size, each group of them in turn with both references, and yields each group's runs."""
    others = [name for name in variants if name not in REFERENCES]
    room = SIZES[size].companions
    for start in range(0, max(1, len(others)), room):
        names = [*REFERENCES, *others[start : start + room]]
        group = {name: Contestant("variant_child", job(name, size, steps)) for name in names}
        take_turns(group, f"{size}: {', '.join(names)}")
        yield group


def losses_of_seeds(size: str, steps: int, seeds: Sequence[int]) -> list[list[float]]:
    """Returns float32's losses with other seeds of weights and batches."""
    jobs = {f"seed {seed}": job("float32", size, steps, seed=seed, memory=False) for seed in seeds}
    runs = {name: Contestant("variant_child", each) for name, each in jobs.items()}
    take_turns(runs, f"{size}: float32 with {' and '.join(runs)}")
    return [run.losses for run in runs.values()]


def take_turns(runs: Mapping[str, Contestant], what: str) -> None:
    """Runs all to their ends, an iteration of each in turn; `what` is said on a terminal meanwhile."""
    here = str(Path(__file__).resolve().parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *(path for path in paths if path not in ("", here))])
    with ExitStack() as stack:
        going = {}
        for name, run in runs.items():
            # The next starts up when this one has done its first iteration: together they would only contend.
            child = stack.enter_context(Child(run.module, run.job, name))
            if run.take(child):
                going[name] = child
        turn, turns = 0, max(run.job.steps for run in runs.values())
        while going:
            turn += 1
            _say(f"{what}: {min(turn, turns)} of {turns}")
            names = list(going)
            first = turn % len(names)  # whoever comes first after a pause pays for it: each in turn
            for name in names[first:] + names[:first]:
                going[name].go()
                if not runs[name].take(going[name]):
                    del going[name]
    _say("")


def _say(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)
