# SPDX-License-Identifier: Apache-2.0
"""Processes that a script starts with `torch.multiprocessing.spawn`: each opens the tap, the first one reports."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Any

import torch.multiprocessing

from floatwise.tap.job import Job
from floatwise.tap.patches import Patches
from floatwise.tap.stop import stop_process

if TYPE_CHECKING:
    from floatwise.tap.child import ScriptChild
    from floatwise.tap.core import Tap

__all__ = ["Spawned", "follow_spawned_processes", "wrap_spawned"]


def wrap_spawned(patches: Patches, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Makes `torch.multiprocessing.spawn` and `start_processes` start `wrap(function)`, which must be picklable."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def spawn(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return original(wrap(fn), *args, **kwargs)

        return spawn

    patches.replace(torch.multiprocessing, "spawn", make)
    patches.replace(torch.multiprocessing, "start_processes", make)


def follow_spawned_processes(tap: Tap, child: ScriptChild) -> None:
    """Opens the tap in what the script spawns, and ends the script when those have reported its training."""
    # Made when something is spawned: it starts a process that tracks it.
    reported = functools.cache(torch.multiprocessing.get_context("spawn").Event)
    wrap_spawned(tap.patches, lambda function: _Tapped(function, child, reported()))

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def spawn(*args: Any, **kwargs: Any) -> Any:
            context = original(*args, **kwargs)
            if context is None and reported().is_set():  # joined: the training is over
                stop_process()
            return context

        return spawn

    def note(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(process: BaseProcess) -> None:
            child.starts_processes = True
            original(process)

        return start

    tap.patches.replace(torch.multiprocessing, "spawn", make)
    tap.patches.replace(torch.multiprocessing, "start_processes", make)
    tap.patches.replace(BaseProcess, "start", note)


@dataclass(frozen=True)
class Spawned:
    """What a process started by the script knows of itself.

    Attributes:
      rank: Its number among those started together.
      reported: Set when the first of them has reported a training run.
    """

    rank: int
    reported: Event


class _Tapped:
    """A picklable stand-in for the script's function: opens the tap, then calls it."""

    def __init__(self, function: Callable[..., Any], child: ScriptChild, reported: Event) -> None:
        self.function, self.reported = function, reported
        self.module, self.job = child.module, child.job.dumps()

    def __call__(self, rank: int, *args: Any) -> None:
        room = importlib.import_module(self.module)
        child: ScriptChild = room.CHILD(Job.loads(self.job), Spawned(rank, self.reported))
        child.open_tap()
        self.function(rank, *args)
        if child.clock.iterations:
            child.done()
