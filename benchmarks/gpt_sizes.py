# SPDX-License-Identifier: Apache-2.0
"""The models that variants of a training step are compared on: `examples/text_gpt.py` in several sizes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import text_gpt

__all__ = ["SIZES", "Batches", "Size"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and what a step of it takes.

    Attributes:
      width: Of the residual stream.
      layers: Blocks.
      heads: Of each attention.
      batch: Sequences in a step.
      context: Characters in a sequence.
      learning_rate: AdamW's, after warm-up over the first tenth of the steps, as in the example.
      steps: Training steps by default.
      companions: Variants that train at the same time beside the two references, by memory: a process of the
        100 M model holds about 2 GiB.
    """

    width: int
    layers: int
    heads: int
    batch: int
    context: int
    learning_rate: float
    steps: int
    companions: int

    def model(self, seed: int) -> nn.Module:
        """Returns the model in float32; the seed alone decides its weights."""
        torch.manual_seed(seed)
        *_, vocabulary = text_gpt.load_text()
        model: nn.Module = text_gpt.GPT(len(vocabulary), self.context, self.width, self.layers, self.heads)
        return model


class Batches:
    """The batches of a run; the seed alone decides them."""

    def __init__(self, size: Size, seed: int) -> None:
        self._size = size
        self._data = text_gpt.load_text()[0]
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> Batch:
        """Returns the next indices and targets, both of shape (batch, context)."""
        batch: Batch = text_gpt.draw_batch(self._data, self._size.batch, self._size.context, self._generator)
        return batch


#: text_gpt has the example's own defaults. gpt_100m has GPT-2 small's width and heads (Radford et al. 2019) and 14
#: layers, since an alphabet's embedding is small; its batch is what a few steps of every variant leave time for.
SIZES = {
    "text_gpt": Size(width=384, layers=6, heads=6, batch=12, context=128, learning_rate=1e-3, steps=40, companions=16),
    "gpt_100m": Size(width=768, layers=14, heads=12, batch=4, context=128, learning_rate=3e-4, steps=11, companions=5),
    "tiny": Size(width=32, layers=1, heads=2, batch=2, context=16, learning_rate=1e-3, steps=6, companions=16),
}
