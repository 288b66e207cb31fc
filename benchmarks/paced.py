# SPDX-License-Identifier: Apache-2.0
"""Children that do something again and again, once at each word of their parent, and report the time it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from floatwise.tap.channel import Channel
from floatwise.tap.job import Job

__all__ = ["Work", "serve"]


class Work(Protocol):
    """What a child does; its first `warm_up` iterations are not timed."""

    warm_up: int

    def iteration(self, index: int) -> float:
        """Does it once and returns the loss."""

    def result(self) -> dict[str, Any]:
        """Returns what was measured beside times and losses."""


def serve(make: Callable[[Job], Work]) -> None:
    """Does the job of the file that the command line names; whatever goes wrong is told to the parent."""
    job, channel = Job.load(sys.argv[1]), Channel()
    try:
        work = make(job)
        for index in range(job.steps):
            if index:
                channel.wait()
            started = time.perf_counter()
            loss = work.iteration(index)
            seconds = time.perf_counter() - started
            channel.send("step", index=index, loss=loss, seconds=seconds, timed=index >= work.warm_up)
        channel.wait()
        channel.send("done", **work.result())
    except ModuleNotFoundError as error:
        _fail(channel, f"{error.name} is not installed")
    except Exception as error:
        _fail(channel, f"{type(error).__name__}: {error}")


def _fail(channel: Channel, message: str) -> None:
    channel.send("failed", message=message, traceback="in a child of the benchmark")
