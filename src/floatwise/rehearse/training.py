# SPDX-License-Identifier: Apache-2.0
"""What is rehearsed: a model, its optimizer and the loss of each step, made anew for every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["MakeTraining", "Training"]


@dataclass(frozen=True)
class Training:
    """A training that has not begun.

    Attributes:
      model: The model, with float32 weights.
      optimizer: The optimizer of its parameters.
      loss: Computes the forward pass and the loss of a step from its number, the first being 0. It always takes
        the same batch for the same number.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[int], Tensor]


MakeTraining: TypeAlias = Callable[[], Training]
"""Makes a training; called once for each run.

The random state is seeded before each call. One that seeds by itself makes the same training under every seed: the
spread of float32 then comes from its reductions, added up in another order.
"""
