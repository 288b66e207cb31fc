# SPDX-License-Identifier: Apache-2.0
"""The models that are trained on both sides, from the examples, from PyTorch's layers and from transformers."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.gpu.part import Size
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Batch", "Model", "example", "from_transformers", "lstm", "model_of"]

Batch = tuple[Tensor, ...]

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Model:
    """A training: how to make a model, its batches and its optimizer, and its loss.

    Attributes:
      name: For tables.
      make: Makes the model, with float32 weights; the random state decides them. Without dropout, whose masks differ
        from device to device.
      batch: Makes the batch of a step on the CPU; the number alone decides it.
      optimizer: Makes the optimizer.
      loss: Of the model for a batch.
      is_one_operator: Whether the rehearsal takes it apart where CUDA has one operator, so that only what Python calls
        can be compared.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    optimizer: Callable[[nn.Module], Optimizer]
    loss: Callable[..., Tensor]
    is_one_operator: bool = False
    _made: dict[int, nn.Module] = field(default_factory=dict, repr=False)

    def made(self, seed: int = 0) -> nn.Module:
        """Returns a model with the weights of a seed, whatever the random state."""
        if seed not in self._made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self._made[seed] = self.make()
        return copy.deepcopy(self._made[seed])


@cache
def example(name: str) -> ModuleType:
    """Returns a module of `examples/`; what it imports for its data alone may be missing."""
    spec = importlib.util.spec_from_file_location(f"floatwise_example_{name}", _EXAMPLES / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(_EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    absent = {} if importlib.util.find_spec("sklearn") else _placeholders()
    sys.modules.update(absent)
    try:
        spec.loader.exec_module(module)
    finally:
        for stand_in in absent:
            del sys.modules[stand_in]
    return module


def _placeholders() -> dict[str, ModuleType]:
    names = {"sklearn": [], "sklearn.datasets": ["load_digits"], "sklearn.model_selection": ["train_test_split"]}
    modules = {name: ModuleType(name) for name in names}
    for name, contents in names.items():
        for content in contents:
            setattr(modules[name], content, None)
    return modules


# -- the examples -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GptSize:
    width: int
    layers: int
    heads: int
    batch: int
    context: int


#: text_gpt as it is; with a batch that fills a GPU; and with GPT-2 small's width and heads (Radford et al. 2019) and 14
#: layers, since an alphabet's embedding is small.
_GPT: Mapping[str, _GptSize] = {
    "text_gpt": _GptSize(384, 6, 6, 12, 128),
    "text_gpt, large batch": _GptSize(384, 6, 6, 64, 256),
    "gpt_100m": _GptSize(768, 14, 12, 8, 512),
    "tiny": _GptSize(32, 2, 2, 2, 16),
}


def _gpt(name: str, size: _GptSize) -> Model:
    text_gpt = example("text_gpt")
    data, _, vocabulary = text_gpt.load_text()

    def batch(step: int) -> Batch:
        drawn: Batch = text_gpt.draw_batch(data, size.batch, size.context, torch.Generator().manual_seed(step))
        return drawn

    return Model(
        name,
        lambda: text_gpt.GPT(len(vocabulary), size.context, size.width, size.layers, size.heads),
        batch,
        lambda model: text_gpt.make_optimizer(model, 1e-3),
        lambda model, indices, targets: model(indices, targets),
    )


class _SmallNet(nn.Module):
    """The layers of `examples/digits_cnn.py`, narrow."""

    def __init__(self) -> None:
        super().__init__()
        digits = example("digits_cnn")
        self.features = nn.Sequential(
            digits.conv_block(1, 8), nn.MaxPool2d(2), digits.conv_block(8, 8), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def _digits(size: Size, images: int) -> Model:
    def make() -> nn.Module:
        model: nn.Module = _SmallNet() if size == "tiny" else example("digits_cnn").Net()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        kinds = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(10_000))
        labels = torch.randint(10, (images,), generator=generator)
        return kinds[labels] + 0.3 * torch.randn(images, 1, 8, 8, generator=generator), labels

    return Model("digits_cnn", make, batch, lambda m: torch.optim.Adam(m.parameters(), lr=2e-3), _classified)


# -- others -----------------------------------------------------------------------------------------------------------


class _Translator(nn.Module):
    """A transformer with encoder and decoder, as PyTorch has it."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 4, layers, layers, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = torch.full((length, length), -torch.inf, device=target.device).triu(1)
        outputs = self.transformer(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True)
        logits: Tensor = self.head(outputs)
        return logits


def _translator(size: Size) -> Model:
    vocabulary, width, layers, sentences = (50, 16, 1, 2) if size == "tiny" else (4000, 256, 3, 64)

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        words = (torch.randint(vocabulary, (sentences, length), generator=generator) for length in (64, 48))
        return tuple(words)

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    make = lambda: _Translator(vocabulary, width, layers)  # noqa: E731
    return Model("translator", make, batch, lambda m: torch.optim.Adam(m.parameters()), loss)


def _perceptron(size: Size) -> Model:
    """Wide layers and a large batch: products are nearly all of its time."""
    width, layers, rows = (32, 2, 16) if size == "tiny" else (4096, 4, 4096)

    def make() -> nn.Module:
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 16))

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(rows, width, generator=generator), torch.randint(16, (rows,), generator=generator)

    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)  # noqa: E731
    return Model("perceptron", make, batch, sgd, _classified)


def _classified(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), classes)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 32, num_layers=2, batch_first=True), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


def lstm() -> Model:
    """Two recurrent layers."""

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(4, 12, 16, generator=generator), torch.randint(8, (4,), generator=generator)

    return Model(
        "lstm", _Recurrent, batch, lambda m: torch.optim.Adam(m.parameters()), _classified, is_one_operator=True
    )


def model_of(name: str, size: Size) -> Model:
    """Returns a model by name: text_gpt, `text_gpt, large batch`, gpt_100m, digits_cnn, translator or perceptron."""
    if name in _GPT:
        return _gpt(name, _GPT["tiny" if size == "tiny" else name])
    if name == "digits_cnn":
        return _digits(size, 8 if size == "tiny" else 128)
    if name == "digits_cnn, large batch":
        return _digits(size, 8 if size == "tiny" else 1024)
    return {"translator": _translator, "perceptron": _perceptron}[name](size)


# -- transformers -----------------------------------------------------------------------------------------------------


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=tokens, labels=tokens).loss
        return loss


def from_transformers() -> list[Model]:
    """Returns a small BERT and a small T5, made from configurations; none where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return []
    import transformers as hf

    bert: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    t5: dict[str, Any] = {
        "vocab_size": 64,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    makers: dict[str, Callable[[], Any]] = {
        "BERT": lambda: hf.BertForMaskedLM(hf.BertConfig(**bert)),
        "T5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**t5)),
    }

    def batch(step: int) -> Batch:
        return (torch.randint(1, 64, (2, 16), generator=torch.Generator().manual_seed(step)),)

    return [
        Model(
            f"transformers' {name}",
            lambda make=make: _WithLoss(make()),  # type: ignore[misc]
            batch,
            lambda m: torch.optim.AdamW(m.parameters()),
            lambda model, tokens: model(tokens),
        )
        for name, make in makers.items()
    ]
