# SPDX-License-Identifier: Apache-2.0
"""How many steps GradScaler and LossScaler skip in the same float16 training.

A character model and a convolutional net train 3,000 updates from a loss scale of 2**16. Products take and give
float16 as matrix units do: operands and gradients are rounded to it (and overflow in it), sums are float32. Takes a
minute and a half on one core.

    python benchmarks/scale_growth.py [--updates 3000] [--intervals 100 2000]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from floatwise.torch import LossScaler

Loss = Callable[[], Tensor]


class Rounded(torch.autograd.Function):
    """Rounds values to float16, and their gradients too; what the gradients reach is kept in `largest`."""

    largest = 0.0

    @staticmethod
    def forward(ctx, values):  # noqa: D102
        return values.half().float()

    @staticmethod
    def backward(ctx, gradients):  # noqa: D102
        if Rounded.largest >= 0:
            Rounded.largest = max(Rounded.largest, gradients.abs().max().item())
        return gradients.half().float()


def rounded(values: Tensor) -> Tensor:
    """Returns values as float16 holds them."""
    return Rounded.apply(values)


class Linear(nn.Linear):
    """A linear layer of float16 products."""

    def forward(self, values: Tensor) -> Tensor:  # noqa: D102
        return rounded(F.linear(rounded(values), rounded(self.weight), self.bias))


class Conv(nn.Conv2d):
    """A convolution of float16 products."""

    def forward(self, values: Tensor) -> Tensor:  # noqa: D102
        return rounded(F.conv2d(rounded(values), rounded(self.weight), padding=1))


class CharacterModel(nn.Module):
    """One transformer block over 64 kinds of characters."""

    def __init__(self, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(64, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down, self.head = Linear(width, 4 * width), Linear(4 * width, width), Linear(width, 64)

    def forward(self, codes: Tensor) -> Tensor:  # noqa: D102
        x = self.characters(codes) + self.places.weight
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x))


def characters() -> tuple[nn.Module, Loss]:
    """A character model on the text of the licence."""
    text = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
    codes = torch.tensor([ord(c) % 64 for c in text])
    model = CharacterModel()

    def loss() -> Tensor:
        starts = torch.randint(len(codes) - 17, (8,)).tolist()
        batch = torch.stack([codes[s : s + 17] for s in starts])
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return model, loss


def digits(reduction: str) -> tuple[nn.Module, Loss]:
    """A convolutional net on handwritten digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)
    model = nn.Sequential(
        Conv(1, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Conv(8, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        Linear(64, 10),
    )

    def loss() -> Tensor:
        some = torch.randint(len(labels), (16,))
        return F.cross_entropy(model(images[some]), labels[some], reduction=reduction)

    return model, loss


MODELS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "character model": characters,
    "digits": lambda: digits("mean"),
    "digits, summed loss": lambda: digits("sum"),
}


@dataclass(frozen=True)
class Result:
    """A training: skipped steps, the first and last scale as powers of two, the mean loss of the last 100 updates."""

    skipped: int
    first: float
    last: float
    loss: float


def train(make: Callable[[], tuple[nn.Module, Loss]], scaler: GradScaler, updates: int) -> Result:
    """Trains a model, always with the same seed."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first, skipped, losses = scaler.get_scale(), 0, []
    for _ in range(updates):
        optimizer.zero_grad()
        loss = loss_of()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        losses.append(loss.item())
    last = losses[-100:]
    return Result(skipped, math.log2(first), math.log2(scaler.get_scale()), sum(last) / len(last))


def window_top(make: Callable[[], tuple[nn.Module, Loss]]) -> int:
    """Returns the largest power of two at which no float16 gradient of one batch overflows."""
    torch.manual_seed(0)
    _, loss_of = make()
    Rounded.largest = 0.0
    loss_of().backward()
    largest, Rounded.largest = Rounded.largest, -1.0
    return math.floor(math.log2(65504 / largest))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--intervals", type=int, nargs="+", default=[100, 2000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    print(f"{options.updates} updates each\n")
    print("| model | growth interval | scaler | skipped steps | scale, first to last | loss |")
    print("|---|---|---|---|---|---|")
    for name, make in MODELS.items():
        top = window_top(make)
        for interval in options.intervals:
            scalers = {
                "GradScaler": GradScaler("cpu", growth_interval=interval),
                "LossScaler": LossScaler("cpu", growth_interval=interval),
                "LossScaler, measured start": LossScaler(
                    "cpu", init_scale=2.0 ** (top - 3), growth_interval=interval, window_log2=(0, top)
                ),
            }
            for kind, scaler in scalers.items():
                result = train(make, scaler, options.updates)
                scales = f"2^{result.first:.0f} to 2^{result.last:.0f}"
                print(f"| {name} | {interval} | {kind} | {result.skipped} | {scales} | {result.loss:.4f} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
