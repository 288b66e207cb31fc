# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured peak of tensor memory: four models under three recipes, each trained in its own process.

python benchmarks/memory_prediction.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.plan import recipe
from floatwise.rehearse.memory import Loss, predict_memory
from floatwise.torch import prepare
from floatwise.torch.script.peak_memory import PeakMemoryMeter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import digits_cnn
import text_gpt

RECIPES = ("fp32", "bf16-mixed", "bf16-master")


class Classifier(nn.Module):
    """A perceptron that is wide for its batch: states decide its memory, and the optimizer's step may be the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
        self.head = nn.Linear(2048, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits of shape (batch, 10)."""
        logits: Tensor = self.head(self.layers(x))
        return logits


class Translator(nn.Module):
    """A transformer with encoder and decoder, as PyTorch has it."""

    def __init__(self, vocabulary: int = 4000, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 4, 3, 3, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns logits of shape (batch, length, vocabulary)."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        logits: Tensor = self.head(
            self.transformer(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True)
        )
        return logits


def _classified(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), classes)


def _translated(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())


def _modelled(model: nn.Module, indices: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = model(indices, targets)
    return loss


@dataclass(frozen=True)
class Case:
    """A training to be predicted: how to make the model, a batch and the optimizer, and its loss."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    optimizer: Callable[[nn.Module], Optimizer]
    loss: Loss


def _adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters())


def _sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _fused_adamw(model: nn.Module) -> Optimizer:
    optimizer: Optimizer = text_gpt.make_optimizer(model, 1e-3)
    return optimizer


def _words(*shape: int) -> Tensor:
    return torch.randint(0, 90, shape)


CASES = {
    "text_gpt": Case(
        lambda: text_gpt.GPT(90, 128, 384, 6, 6), lambda: (_words(12, 128), _words(12, 128)), _fused_adamw, _modelled
    ),
    "digits_cnn": Case(digits_cnn.Net, lambda: (torch.randn(128, 1, 8, 8), torch.arange(128) % 10), _adam, _classified),
    "translator": Case(Translator, lambda: (_words(16, 64), _words(16, 48)), _adam, _translated),
    "perceptron": Case(Classifier, lambda: (torch.randn(64, 784), torch.arange(64) % 10), _sgd, _classified),
}


def predicted(case: Case, name: str) -> dict[str, Any]:
    """Returns the prediction, for a model on the `meta` device."""
    with torch.device("meta"):
        model = case.model()
    return predict_memory(model, case.batch(), case.optimizer(model), recipe(name), loss=case.loss).to_json()


def measured(case: Case, name: str, steps: int = 5) -> int:
    """Trains in this process and returns the peak of the last step."""
    torch.manual_seed(0)
    model = case.model()
    optimizer = case.optimizer(model)
    precision = prepare(model, optimizer, recipe(name))
    batch, meter = case.batch(), PeakMemoryMeter()
    for index in range(steps):
        if index == steps - 2:
            meter.begin()
        elif index == steps - 1:
            meter.mark()
        with precision.forward():
            loss = case.loss(model, *batch)
        precision.backward(loss)
        precision.step()
        precision.zero_grad()
        loss.item()
        del loss
    meter.end()
    assert meter.peak_bytes is not None
    return meter.peak_bytes


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--compare", nargs=2, metavar=("MODEL", "RECIPE"), help="one pair alone, as JSON")
    args = parser.parse_args()
    if args.compare:
        model, name = args.compare
        row = predicted(CASES[model], name)
        print(json.dumps({**row, "measured_bytes": measured(CASES[model], name)}))
        return
    rows = []
    print(f"{'model':12} {'recipe':12} predicted  measured   error  at the peak (MiB)")
    for model in CASES:
        for name in RECIPES:
            command = [sys.executable, __file__, "--compare", model, name]
            row = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            real = row.pop("measured_bytes")
            error = row["peak_bytes"] / real - 1
            rows.append({"model": model, "recipe": name, "measured_bytes": real, "error": error, **row})
            kinds = ", ".join(
                f"{k.removesuffix('_bytes')} {v / 2**20:.1f}"
                for k, v in row.items()
                if k.endswith("_bytes") and k != "peak_bytes" and v
            )
            mib = [x / 2**20 for x in (row["peak_bytes"], real)]
            print(
                f"{model:12} {name:12} {mib[0]:9.1f} {mib[1]:9.1f} {error:+7.1%}  {row['phase']}: {kinds}", flush=True
            )
    print(f"largest error: {max(abs(row['error']) for row in rows):.1%}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
