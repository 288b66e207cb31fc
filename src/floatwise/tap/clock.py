# SPDX-License-Identifier: Apache-2.0
"""Counts training iterations, whatever optimizers the script has, and keeps the loss of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from typing_extensions import override

from floatwise.tap.events import Observer
from floatwise.tap.step_count import StepCount

__all__ = ["IterationClock"]


class IterationClock(Observer):
    """Calls `on_iteration(index, loss)` at the end of each iteration, counted from 0; see `StepCount`.

    What updates are optimizers, or the script by hand. A step of parameters without gradients is none.

    Args:
      on_iteration: Gets the index and the sum of the iteration's scalar losses (NaN when there was none).
    """

    def __init__(self, on_iteration: Callable[[int, float], None]) -> None:
        self.backwards = 0
        self.steps_without_gradient = 0
        self.optimizers: set[str] = set()
        self._count = StepCount(on_iteration)
        self._losses: list[Tensor] = []
        # An address may be used again by the next phase's optimizer; a number of its own is not.
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._next_number = 1

    @property
    def iterations(self) -> int:
        """Iterations that have ended."""
        return self._count.iterations

    @override
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self.backwards += 1
        self._losses.extend(r.detach() for r in roots if r.numel() == 1)

    @override
    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is not None and not _has_gradient(optimizer):
            self.steps_without_gradient += 1
            return
        self.optimizers.add(type(optimizer).__name__ if optimizer is not None else "update by hand")
        losses, self._losses = self._losses, []
        for loss in losses:
            self._count.lost(float(loss))
        self._count.stepped(self._number(optimizer))

    def _number(self, optimizer: torch.optim.Optimizer | None) -> int:
        if optimizer is None:
            return 0
        if optimizer not in self._numbers:
            self._numbers[optimizer] = self._next_number
            self._next_number += 1
        return self._numbers[optimizer]


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
