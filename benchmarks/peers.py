# SPDX-License-Identifier: Apache-2.0
"""The same training under Accelerate, Lightning Fabric and torchao, as their documentation has it.

Each is imported when it is asked for, so that one that is not installed costs its own row only.
"""

from __future__ import annotations

from typing import Any

import text_gpt
import torch
from gpt_sizes import Batch
from torch import Tensor, nn
from torch.optim import Optimizer
from training import CLIP_NORM, Training

__all__ = ["accelerate", "fabric_mixed", "fabric_true", "torchao_8bit", "torchao_8bit_bfloat16"]


class Accelerated(Training):
    """`accelerate.Accelerator(mixed_precision="bf16")`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        from accelerate import Accelerator

        super().__init__(model, optimizer, steps)
        self.accelerator = Accelerator(mixed_precision="bf16", cpu=True)
        self.wrapped, self.stepped = self.accelerator.prepare(model, optimizer)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss; the wrapped forward holds the region."""
        loss: Tensor = self.wrapped(*batch)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients."""
        self.accelerator.backward(loss)

    def update(self) -> None:
        """Clips, steps and clears the gradients."""
        self.accelerator.clip_grad_norm_(self.wrapped.parameters(), CLIP_NORM)
        self.stepped.step()
        self.scheduler.step()
        self.stepped.zero_grad()


class Fabricated(Training):
    """`lightning.fabric.Fabric(precision=...)`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, steps: int, precision: Any) -> None:
        from lightning.fabric import Fabric

        super().__init__(model, optimizer, steps)
        self.fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        self.wrapped, self.stepped = self.fabric.setup(model, optimizer)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss; the wrapped forward holds the region."""
        loss: Tensor = self.wrapped(*batch)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients."""
        self.fabric.backward(loss)

    def update(self) -> None:
        """Clips, steps and clears the gradients."""
        self.fabric.clip_gradients(self.wrapped, self.stepped, max_norm=CLIP_NORM)
        self.stepped.step()
        self.scheduler.step()
        self.stepped.zero_grad()


class LowBit(Training):
    """torchao's 8-bit AdamW, with autocast around float32 weights or with weights in bfloat16.

    It has no fused kernel: it compiles its step with torch.compile.
    """

    def __init__(self, model: nn.Module, learning_rate: float, steps: int, *, bfloat16: bool) -> None:
        from torchao.optim import AdamW8bit

        if bfloat16:
            model.to(torch.bfloat16)
        alike = text_gpt.make_optimizer(model, learning_rate)
        groups = [{key: group[key] for key in ("params", "weight_decay")} for group in alike.param_groups]
        betas = alike.param_groups[0]["betas"]
        super().__init__(model, AdamW8bit(groups, lr=learning_rate, betas=betas, bf16_stochastic_round=bfloat16), steps)
        self.autocast = not bfloat16

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return super().forward(batch)


def accelerate(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return Accelerated(model, text_gpt.make_optimizer(model, learning_rate), steps)


def fabric_mixed(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return Fabricated(model, text_gpt.make_optimizer(model, learning_rate), steps, "bf16-mixed")


def fabric_true(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return Fabricated(model, text_gpt.make_optimizer(model, learning_rate), steps, "bf16-true")


def torchao_8bit(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return LowBit(model, learning_rate, steps, bfloat16=False)


def torchao_8bit_bfloat16(model: nn.Module, learning_rate: float, steps: int) -> Training:
    return LowBit(model, learning_rate, steps, bfloat16=True)
