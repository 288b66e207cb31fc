# SPDX-License-Identifier: Apache-2.0
"""Times of things that take turns, on CUDA by events, and the ratios of neighbouring times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

__all__ = ["Ratio", "ratio", "take_turns"]


class Ratio(NamedTuple):
    """Median of pairwise ratios, and the quartiles."""

    median: float
    low: float
    high: float


def take_turns(
    runs: Mapping[str, Callable[[], object]],
    device: str,
    *,
    warm_up: int,
    rounds: int,
    seconds: float = float("inf"),
) -> dict[str, list[float]]:
    """Calls each in turn, in another order each round, and returns the seconds of each round.

    A call is timed from start to end of its work on the device, the waiting for the host in between included.

    Args:
      runs: What to call, by name.
      device: `cuda` or `cpu`.
      warm_up: Rounds that are not timed.
      rounds: Rounds that are.
      seconds: After which no further round begins; two are timed in any case.
    """
    deadline = time.monotonic() + seconds
    found: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(warm_up + rounds):
        if number >= warm_up + 2 and time.monotonic() > deadline:
            break
        order = [*order[1:], order[0]]
        for name in order:
            taken = _timed(runs[name], device)
            if number >= warm_up:
                found[name].append(taken)
    return found


def _timed(run: Callable[[], object], device: str) -> float:
    if device != "cuda":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * float(begin.elapsed_time(end))


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Returns the ratio of times that were taken in turn."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)
