# SPDX-License-Identifier: Apache-2.0
"""Six models that train in float32 and fail in 16 bits, each for one reason in one module; and two healthy ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tests.rehearse.cases.parts import (
    HEADS,
    VOCABULARY,
    WIDTH,
    Attention,
    Transformer,
    language_training,
    scaled_,
)
from torch import Tensor, nn

from floatwise.rehearse.training import Training


class GatedFeedForward(nn.Module):
    """T5's: each factor fits float16 and so does their product, but what `wo` adds up does not."""

    def __init__(self) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (scaled_(nn.Linear(WIDTH, 4 * WIDTH, bias=False), 40.0) for _ in range(2))
        self.wo = scaled_(nn.Linear(4 * WIDTH, WIDTH, bias=False), 200.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wo(F.gelu(self.wi_0(x)) * self.wi_1(x))
        return y


class OverflowingGate(GatedFeedForward):
    """Here the product of the two factors is already past float16."""

    def __init__(self) -> None:
        super().__init__()
        scaled_(self.wi_0, 16.0)
        scaled_(self.wi_1, 16.0)
        scaled_(self.wo, 1 / 200.0)


class HandWrittenRMSNorm(nn.Module):
    """Squares in the format of its input: past 256 they are past float16."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.gain


class WideFeedForward(nn.Module):
    """Normalises large hidden values by hand, between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.rms, self.down = nn.Linear(WIDTH, WIDTH), HandWrittenRMSNorm(), nn.Linear(WIDTH, WIDTH)
        scaled_(self.up, 1500.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.rms(self.up(x))))
        return y


class GrownHead(nn.Module):
    """A head whose logits have grown past float16, and a temperature that takes them down again."""

    def __init__(self) -> None:
        super().__init__()
        self.project = scaled_(nn.Linear(WIDTH, VOCABULARY), 8e4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.project(x)
        return logits / 4e4


class Rotary(nn.Module):
    """Turns pairs by angles that are computed in the format of the queries: late positions are rounded away."""

    frequencies: Tensor

    def __init__(self, half: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 100.0 ** (torch.arange(half) / half))
        self.first = 30_000

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(self.first, self.first + x.shape[-2]).to(x.dtype)
        angles = positions[:, None] * self.frequencies.to(x.dtype)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class RotaryAttention(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.rotary = Rotary(WIDTH // HEADS // 2)
        scaled_(self.q, 4.0)
        scaled_(self.k, 4.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.rotary(self.split(part(x))) for part in (self.q, self.k))
        mixed = F.scaled_dot_product_attention(q, k, self.split(self.v(x)), is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class SummedError(nn.Module):
    """A loss that adds up 2^17 squares in the format of its input."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        error = output - target.to(output.dtype)
        return (error * error).sum(dtype=output.dtype) / output.numel()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.criterion = nn.Linear(256, 64), nn.Linear(64, 256), SummedError()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.decoder(torch.tanh(self.encoder(x))), x)
        return loss


class LateScaledAttention(Attention):
    """Divides by sqrt(d) after the product, which is past float16: queries and keys share a large constant part."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.q.bias.fill_(80.0)
            self.k.bias.fill_(80.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(16 * 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.features(images).flatten(1))
        return y


def autoencoder() -> Training:
    model = Autoencoder()
    data = torch.randn(4, 512, 8) @ torch.randn(8, 256)
    return Training(model, torch.optim.Adam(model.parameters(), 1e-3), lambda step: model(data[step % 4]))


def convolutional() -> Training:
    model = ConvNet()
    labels = torch.randint(4, (8, 32))
    images = torch.randn(8, 32, 1, 8, 8) + torch.randn(4, 1, 8, 8)[labels]

    def loss(step: int) -> Tensor:
        return F.cross_entropy(model(images[step % 8]), labels[step % 8])

    return Training(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), loss)


def transformer(**parts: Callable[[], nn.Module]) -> Callable[[], Training]:
    return lambda: language_training(Transformer(**parts))


class Case(NamedTuple):
    """A training, the recipe it fails under, and the module that is to blame (empty: none)."""

    make: Callable[[], Training]
    recipe: str
    module: str
    advice: str = ""


PLANTED = {
    "gated_ffn": Case(transformer(ffn=GatedFeedForward), "fp16-mixed", "blocks.1.ffn.wo", "scale_product"),
    "rms_norm": Case(transformer(ffn=WideFeedForward), "fp16-mixed", "blocks.1.ffn.rms", "compute_in_float32"),
    "logits": Case(transformer(head=GrownHead), "fp16-mixed", "head.project", "scale_before_product"),
    "rotary": Case(
        transformer(attention=RotaryAttention), "bf16-mixed", "blocks.1.attention.rotary", "not_from_rounded"
    ),
    "summed_loss": Case(autoencoder, "fp16-mixed", "criterion", "sum_in_float32"),
    "late_scale": Case(
        transformer(attention=LateScaledAttention), "fp16-mixed", "blocks.1.attention", "scale_before_product"
    ),
}

HEALTHY = {
    "gpt": Case(transformer(), "fp16-mixed", ""),
    "gpt_bf16": Case(transformer(), "bf16-mixed", ""),
    "cnn": Case(convolutional, "fp16-mixed", ""),
    "cnn_bf16": Case(convolutional, "bf16-mixed", ""),
}
