# SPDX-License-Identifier: Apache-2.0
"""What is one training iteration, when several things update: the rule, for every framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

__all__ = ["StepCount"]


class StepCount:
    """Calls `on_iteration(index, loss)` at the end of each iteration, counted from 0.

    An iteration ends when the main one of all that update has done so: the first one, until another updates twice
    without it (a second training phase, or the one network of a GAN that is trained more often).

    Args:
      on_iteration: Gets the index and the sum of the iteration's losses (NaN when there was none).
    """

    def __init__(self, on_iteration: Callable[[int, float], None]) -> None:
        self.iterations = 0
        self._on_iteration = on_iteration
        self._losses: list[float] = []
        self._main: Hashable = None
        self._others: set[Hashable] = set()

    def lost(self, loss: float) -> None:
        """Adds a loss to the iteration's."""
        self._losses.append(loss)

    def stepped(self, key: Hashable, loss: float = math.nan) -> None:
        """Tells that what `key` names has updated, with a loss of its own where it is a number."""
        if not math.isnan(loss):
            self.lost(loss)
        if self._main is None or key in self._others:
            self._main = key
        if key != self._main:
            self._others.add(key)
            return
        self._others.clear()
        losses, self._losses = self._losses, []
        self.iterations += 1
        self._on_iteration(self.iterations - 1, sum(losses) if losses else math.nan)
