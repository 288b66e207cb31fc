# SPDX-License-Identifier: Apache-2.0
"""A small model with everything that matters when it is distributed, and its training under a plan."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from floatwise.plan import Plan
from floatwise.torch import StepInfo, prepare

__all__ = ["Tower", "batches", "ranks_part", "start", "train", "whole_weights"]

WIDTH, WORDS = 8, 11  # an odd number of rows: two ranks have shards of different sizes


class Block(nn.Module):
    """Norm gains and matrices side by side, and attention that uses its weights without calling a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return out


class Tower(nn.Module):
    """Blocks between an embedding and the head that is tied to it; returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.score = nn.Linear(WIDTH, 1)  # one row: the second of two ranks has nothing of it

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        guess = functional.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss: Tensor = guess + self.score(x).float().square().mean()
        return loss


def start() -> Tower:
    """Returns the model as every training starts, its norm gains and biases unlike 16-bit numbers."""
    torch.manual_seed(0)
    model = Tower()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def batches(count: int, seed: int = 1) -> list[Tensor]:
    """Returns batches of 8 sequences."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, WORDS, (8, 6), generator=generator) for _ in range(count)]


def ranks_part(batch: Tensor, rank: int, ranks: int) -> Tensor:
    """Returns the sequences of a batch that a rank trains on."""
    return batch.chunk(ranks)[rank]


def train(model: nn.Module, plan: Plan | str, parts: Sequence[Sequence[Tensor]]) -> tuple[list[StepInfo], list[float]]:
    """Trains under a plan and returns what each step did and its last loss.

    Args:
      model: The model, wrapped or not.
      plan: The plan.
      parts: The micro-batches of each step.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    precision = prepare(model, optimizer, plan)
    infos, losses = [], []
    for step in parts:
        for i, part in enumerate(step):
            with precision.accumulate(last=i == len(step) - 1):
                with precision.forward():
                    loss = model(part)
                precision.backward(loss, accumulation_steps=len(step))
        infos.append(precision.step())
        losses.append(loss.item())
        optimizer.zero_grad()
    precision.close()
    return infos, losses


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all weights, gathered where they are sharded, by the names they have without wrappers."""
    weights = {}
    for name, parameter in model.named_parameters():
        whole: Any = parameter.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        weights[name.removeprefix("module.")] = copy.deepcopy(whole)
    return weights
