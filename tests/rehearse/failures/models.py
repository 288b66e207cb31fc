# SPDX-License-Identifier: Apache-2.0
"""Models whose parts can be replaced by one that fails, as small as the failures allow, and what they are taught."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.rehearse.training import MakeTraining, Training

__all__ = [
    "CLASSES",
    "WIDTH",
    "Classifier",
    "FeedForward",
    "GatedFeedForward",
    "Language",
    "MaskedAttention",
    "RMSNorm",
    "Residual",
    "WideNorm",
    "classification",
    "scaled_",
]

WIDTH, CLASSES = 64, 10


def scaled_(linear: nn.Linear, factor: float) -> nn.Linear:
    """Multiplies a layer's weights: as in a model whose weights have grown over a long training."""
    with torch.no_grad():
        linear.weight.mul_(factor)
    return linear


class FeedForward(nn.Sequential):
    """Healthy in 16 bits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class GatedFeedForward(nn.Module):
    """T5 v1.1's: the product of two halves goes into the last layer."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (scaled_(nn.Linear(WIDTH, 4 * WIDTH, bias=False), weight) for _ in range(2))
        self.wo = scaled_(nn.Linear(4 * WIDTH, WIDTH, bias=False), weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wo(F.gelu(self.wi_0(x)) * self.wi_1(x))
        return y


class RMSNorm(nn.Module):
    """Written by hand, in the format of its input; `square` gives `x * x` or `x.pow(2)`."""

    def __init__(self, square: Callable[[Tensor], Tensor], eps: float = 1e-6) -> None:
        super().__init__()
        self.square, self.eps = square, eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(self.square(x).mean(-1, keepdim=True) + self.eps)


class WideNorm(nn.Sequential):
    """A normalisation of values whose root mean square is about 200, between two layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(scaled_(nn.Linear(WIDTH, WIDTH), 200 / 3**-0.5), norm, nn.Linear(WIDTH, WIDTH))


class MaskedAttention(nn.Module):
    """Causal attention over sequences that begin with padding: the first row may look at nothing.

    Args:
      mask: Returns scores that are masked where the second argument is true.
    """

    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.mask = mask
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        forbidden = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        forbidden[:, 0] = True
        scores = self.q(x) @ self.k(x).transpose(-1, -2) * WIDTH**-0.5
        y: Tensor = self.mask(scores, forbidden).softmax(-1) @ self.v(x)
        return y


class Residual(nn.Module):
    """Adds what an inner module makes of normalised values, whose root mean square is `gain`."""

    def __init__(self, inner: nn.Module, gain: float = 1.0) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), inner
        nn.init.constant_(self.norm.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(self.norm(x))
        return y


class Classifier(nn.Module):
    """Blocks, a normalisation and a head."""

    def __init__(self, *blocks: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(WIDTH)
        self.head = head or nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.blocks(x)))
        return y


class Language(nn.Module):
    """Attention and feed-forward blocks over tokens."""

    def __init__(self, vocabulary: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        parts = [part() for _ in range(layers) for part in (_lowest_masked, FeedForward)]
        self.body = Classifier(*map(Residual, parts), head=nn.Linear(WIDTH, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.body(self.embedding(tokens))
        return y


def _lowest_masked() -> nn.Module:
    return MaskedAttention(lambda scores, forbidden: scores.masked_fill(forbidden, torch.finfo(scores.dtype).min))


def classification(
    make_model: Callable[[], nn.Module], *shape: int, blank: bool = False, weight: Callable[[int], float] | None = None
) -> MakeTraining:
    """Makes a training that names which of ten points is nearest; a new batch of 32 in every step, up to 16.

    Args:
      make_model: Makes the model.
      shape: More axes of the inputs, between batch and width. The first position of sequences is padding and not
        part of the loss.
      blank: Whether the inputs of the first class are all zero, as empty images are.
      weight: Weight of the loss by step; default: 1.
    """

    def make() -> Training:
        model = make_model()
        labels = torch.randint(CLASSES, (16, 32, *shape))
        inputs = torch.randn(CLASSES, WIDTH)[labels] + torch.randn(*labels.shape, WIDTH)
        if blank:
            inputs[labels == 0] = 0.0

        def loss(step: int) -> Tensor:
            output, wanted = model(inputs[step]), labels[step]
            if shape:
                output, wanted = output[:, 1:].flatten(0, 1), wanted[:, 1:].flatten()
            value = F.cross_entropy(output, wanted)
            return value if weight is None else value * weight(step)

        return Training(model, torch.optim.Adam(model.parameters(), 1e-3), loss)

    return make
