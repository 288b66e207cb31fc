# SPDX-License-Identifier: Apache-2.0
"""What the planted models have in common: small transformer parts that are healthy in 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.rehearse.training import Training

WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 32, 2, 16, 8, 64


class Attention(nn.Module):
    """Causal attention, its products scaled before they are made."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined

    def split(self, x: Tensor) -> Tensor:
        parts: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return parts


class FeedForward(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Block(nn.Module):
    """A transformer block whose parts may be replaced."""

    def __init__(self, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.ffn = attention, ffn

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.ffn(self.norm2(x))
        return y


class Transformer(nn.Module):
    """Two blocks; the planted part is in the second, so that position alone does not give it away."""

    def __init__(
        self,
        attention: Callable[[], nn.Module] = Attention,
        ffn: Callable[[], nn.Module] = FeedForward,
        head: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(Attention(), FeedForward()), Block(attention(), ffn())])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = head() if head is not None else nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def language_training(model: nn.Module, lr: float = 3e-3, length: int = LENGTH) -> Training:
    """Predicts the next token of sequences that count up in steps of one to four; a new batch in every step."""
    batches = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
    known: dict[int, Tensor] = {}

    def batch(step: int) -> Tensor:
        while len(known) <= step:
            start = torch.randint(VOCABULARY, (BATCH, 1), generator=batches)
            stride = torch.randint(1, 5, (BATCH, 1), generator=batches)
            known[len(known)] = (start + stride * torch.arange(length + 1)) % VOCABULARY
        return known[step]

    def loss(step: int) -> Tensor:
        tokens = batch(step)
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    return Training(model, torch.optim.AdamW(model.parameters(), lr), loss)


def scaled_(linear: nn.Linear, factor: float) -> nn.Linear:
    """Multiplies a layer's weights: as in a model whose weights have grown over a long training."""
    with torch.no_grad():
        linear.weight.mul_(factor)
    return linear
