# SPDX-License-Identifier: Apache-2.0
"""A training step in three parts, in float32; other ways to train replace parts of it."""

from __future__ import annotations

from gpt_sizes import Batch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["CLIP_NORM", "Training"]

#: Limit of the gradients' norm, as in `examples/text_gpt.py`.
CLIP_NORM = 1.0


class Training:
    """A model, its optimizer and the example's schedule.

    Attributes:
      model: The model as it was made, not what a library wrapped it in.
      optimizer: What the loop steps.
      scheduler: Warm-up over the first tenth of the steps, at most 100, as in the example.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
        self.model = model
        self.optimizer = optimizer
        warm_up = max(1, min(100, steps // 10))
        self.scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))

    def forward(self, batch: Batch) -> Tensor:
        """Returns the loss."""
        loss: Tensor = self.model(*batch)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients."""
        loss.backward()

    def update(self) -> None:
        """Clips, steps and clears the gradients."""
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
