# SPDX-License-Identifier: Apache-2.0
"""The predicted loss-scale window against real float16 autocast, tried at every power of two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.planner.window import FLUSHED_SHARE, WindowEstimate, loss_scale_window
from floatwise.probe.observer import Probe
from floatwise.probe.recording import Recording
from floatwise.tap.core import Tap
from floatwise.tap.paths import ModulePaths


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) * (width // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(-1)
        x = x + self.proj((attention @ value).transpose(1, 2).reshape(batch, length, width))
        hidden: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return hidden


class TinyGPT(nn.Module):
    def __init__(self, vocabulary: int = 64, length: int = 16, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(x)))))
        return F.relu(inner + self.shortcut(x))


def make_gpt() -> tuple[nn.Module, Callable[[], Tensor]]:
    model, text = TinyGPT(), torch.randint(0, 64, (4, 17))
    return model, lambda: F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def make_cnn() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    images, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
    return model, lambda: F.cross_entropy(model(images), labels)


MODELS = {"gpt": make_gpt, "cnn": make_cnn}
#: Powers of two that are tried: from far below the window to past the largest loss that float32 holds times 2^24.
TRIED = range(-8, 32)


def predict(model: nn.Module, loss: Callable[[], Tensor]) -> WindowEstimate:
    """One float32 step under the probe."""
    paths = ModulePaths()
    probe = Probe(paths.of, full=True)
    with Tap([probe], paths):
        loss().backward()
        probe.end_iteration()
    recording = Recording(
        script="",
        arguments=(),
        steps=1,
        device="cpu",
        parameters=sum(p.numel() for p in model.parameters()),
        parameter_dtype="float32",
        optimizers=(),
        losses=(),
        matrix_share=1.0,
        sites=probe.sites(1),
        found=(),
        summaries=probe.collector.summaries(),
    )
    window = loss_scale_window(recording)
    assert window is not None
    return window


def try_scale(model: nn.Module, loss: Callable[[], Tensor], scale: float) -> tuple[bool, int, int]:
    """One backward pass of real float16 autocast: all finite, zeros and elements of float16 output gradients."""
    counts = [0, 0]

    def count(module: nn.Module, args: object, output: Tensor) -> None:
        def on_gradient(grad: Tensor) -> None:
            counts[0] += int((grad == 0).sum())
            counts[1] += grad.numel()

        if output.requires_grad and output.dtype is torch.float16:
            output.register_hook(on_gradient)

    products = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    handles = [m.register_forward_hook(count) for m in products]
    with torch.autocast("cpu", torch.float16):
        value = loss()
    (value.float() * scale).backward()
    for handle in handles:
        handle.remove()
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    return finite, counts[0], counts[1]


@pytest.mark.parametrize("name", MODELS)
def test_predicted_window_is_the_one_found_by_trying(name: str) -> None:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    window = predict(model, loss)
    model.zero_grad()
    tried = {k: try_scale(model, loss, 2.0**k) for k in TRIED}
    # Zeros that no scale removes are the model's own (a ReLU's, a mask's), not lost gradients.
    own = min(zeros for finite, zeros, _ in tried.values() if finite)
    clean = [k for k, (finite, _, _) in tried.items() if finite]
    kept = [k for k, (_, zeros, total) in tried.items() if (zeros - own) / (total - own) < FLUSHED_SHARE]
    assert window.hi == max(clean)
    assert window.lo == min(kept)
    assert all(tried[k][0] for k in range(window.lo, window.hi + 1))
