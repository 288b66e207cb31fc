# SPDX-License-Identifier: Apache-2.0
"""Counts training iterations, whatever optimizers the script has, and keeps the loss of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from typing_extensions import override

from floatwise.tap.events import Observer

__all__ = ["IterationClock"]


class IterationClock(Observer):
    """Calls `on_iteration(index, loss)` at the end of each iteration, counted from 0.

    An iteration ends when the main optimizer has stepped: the first one that stepped, until another steps twice
    without it (a second training phase, or the one network of a GAN that is trained more often). A step of
    parameters without gradients is none.

    Args:
      on_iteration: Gets the index and the sum of the iteration's scalar losses (NaN when there was none).
    """

    def __init__(self, on_iteration: Callable[[int, float], None]) -> None:
        self.iterations = 0
        self.backwards = 0
        self.steps_without_gradient = 0
        self.optimizers: set[str] = set()
        self._on_iteration = on_iteration
        self._losses: list[Tensor] = []
        self._main: int | None = None
        self._others: set[int] = set()
        # An address may be used again by the next phase's optimizer; a number of its own is not.
        self._numbers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._next_number = 1

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
        if self._is_main(self._number(optimizer)):
            losses, self._losses = self._losses, []
            loss = sum(float(x) for x in losses) if losses else math.nan
            self.iterations += 1
            self._on_iteration(self.iterations - 1, loss)

    def _number(self, optimizer: torch.optim.Optimizer | None) -> int:
        if optimizer is None:
            return 0
        if optimizer not in self._numbers:
            self._numbers[optimizer] = self._next_number
            self._next_number += 1
        return self._numbers[optimizer]

    def _is_main(self, optimizer: int) -> bool:
        if self._main is None or optimizer in self._others:
            self._main = optimizer
        if optimizer == self._main:
            self._others.clear()
            return True
        self._others.add(optimizer)
        return False


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
