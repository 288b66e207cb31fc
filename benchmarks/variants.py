# SPDX-License-Identifier: Apache-2.0
"""The ways to train that are compared: float32, autocast by hand, Floatwise's recipes, and other libraries'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import peers
import text_gpt
import torch
from gpt_sizes import Batch
from torch import Tensor, nn
from torch.optim import Optimizer
from training import CLIP_NORM, Training

from floatwise.plan import Plan, Weights, recipe
from floatwise.torch import prepare

__all__ = ["REFERENCES", "VARIANTS"]


class ByHand(Training):
    """`torch.autocast` around the forward and the loss, as a loop written by hand has it."""

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss; the region is closed then."""
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(batch)


class Planned(Training):
    """A plan applied by `floatwise.torch.prepare`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, steps: int, plan: Plan) -> None:
        super().__init__(model, optimizer, steps)
        self.precision = prepare(model, optimizer, plan)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss, computed in the plan's region."""
        with self.precision.forward():
            return super().forward(batch)

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients."""
        self.precision.backward(loss)

    def update(self) -> None:
        """Clips, steps and clears the gradients; the schedule moves with real steps only."""
        if self.precision.step(clip_norm=CLIP_NORM).stepped:
            self.scheduler.step()
        self.optimizer.zero_grad()


#: Makes the training of a model for a learning rate and a number of steps.
Maker = Callable[[nn.Module, float, int], Training]


def _float32(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return Training(model, text_gpt.make_optimizer(model, learning_rate), steps)


def _by_hand(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return ByHand(model, text_gpt.make_optimizer(model, learning_rate), steps)


def _mixed(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return Planned(model, text_gpt.make_optimizer(model, learning_rate), steps, recipe("bf16-mixed"))


def _master(master: Literal["split", "kahan", "stochastic"]) -> Maker:
    def make(model: nn.Module, learning_rate: float, steps: int) -> Training:
        plan = recipe("bf16-master", weights=Weights(master=master))
        return Planned(model, text_gpt.make_optimizer(model, learning_rate), steps, plan)

    return make


#: What everything else is compared with; they train beside every group of the others.
REFERENCES = ("float32", "autocast")

#: By the name that `--only` takes.
VARIANTS: Mapping[str, Maker] = {
    "float32": _float32,
    "autocast": _by_hand,
    "bf16-mixed": _mixed,
    "split": _master("split"),
    "kahan": _master("kahan"),
    "stochastic": _master("stochastic"),
    "accelerate": peers.accelerate,
    "fabric-mixed": peers.fabric_mixed,
    "fabric-true": peers.fabric_true,
    "torchao-8bit": peers.torchao_8bit,
    "torchao-8bit-true": peers.torchao_8bit_bfloat16,
}
