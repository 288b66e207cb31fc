# SPDX-License-Identifier: Apache-2.0
"""The PyTorch models that projects bring: their sizes, their shapes, and checkpointing that changes nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from floatwise.scaffold import Answers, choose, render
from floatwise.scaffold.answers import SIZES, TASKS

torch = pytest.importorskip("torch")


def build(folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> ModuleType:
    """Imports model.py of a project."""
    answers = Answers(device="a100", language="en", **given)
    path = folder / f"model_{answers.task}_{answers.size}.py"
    path.write_text(render(answers, choose(answers)).files["model.py"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "data", SimpleNamespace(Data=object))
    spec.loader.exec_module(module)
    return module


def packaged(task: str, extent: int) -> SimpleNamespace:
    """The shapes of the packaged data."""
    shapes = {"image": (1, 8, 8, 1), "text": (1, extent), "tabular": (1, 30)}
    outputs = {"image": 10, "text": 256, "tabular": 2}
    return SimpleNamespace(train_x=np.zeros(shapes[task], np.float32), outputs=outputs[task])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", SIZES)
def test_the_number_of_weights_is_the_closed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, size: str
) -> None:
    module = build(tmp_path, monkeypatch, task=task, size=size)
    choices = choose(Answers(device="a100", task=task, size=size))
    with torch.device("meta"):
        model = module.build_model(packaged(task, choices.shape.extent))
    assert sum(p.numel() for p in model.parameters()) == choices.parameters


@pytest.mark.parametrize("side", [8, 28, 32, 64, 128, 224])
def test_images_of_every_side_become_a_grid_of_about_16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    module = build(tmp_path, monkeypatch, task="image", size="tiny")
    model = module.build_model(SimpleNamespace(train_x=np.zeros((1, side, side, 3)), outputs=4))
    seen = []
    model.blocks[0].register_forward_hook(lambda block, inputs, output: seen.append(output.shape[-1]))
    assert model(torch.zeros(2, side, side, 3)).shape == (2, 4)
    assert seen[0] == side if side < 32 else 15 <= seen[0] <= 17


@pytest.mark.parametrize("task", TASKS)
def test_checkpointed_activations_give_the_same_gradients_and_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    data = packaged(task, 64)
    inputs = torch.randint(0, 256, (4, 64)) if task == "text" else torch.randn(4, *data.train_x.shape[1:])
    results = []
    for trouble in ("none", "oom"):
        module = build(tmp_path, monkeypatch, task=task, size="tiny", trouble=trouble)
        torch.manual_seed(0)
        model = module.build_model(data, checkpoint_activations=trouble == "oom").train()
        model(inputs).square().mean().backward()
        floats = {name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()}
        results.append({**{name: p.grad for name, p in model.named_parameters()}, **floats})
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-5, atol=1e-7)


def test_a_loss_is_computed_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task in TASKS:
        module = build(tmp_path, monkeypatch, task=task, size="tiny")
        outputs = torch.randn(4, 8, 5) if task == "text" else torch.randn(4, 5)
        targets = torch.zeros(outputs.shape[:-1], dtype=torch.int64)
        assert module.loss_of(outputs.bfloat16(), targets).dtype == torch.float32
        expected = module.loss_of(outputs.bfloat16().float(), targets)
        assert torch.equal(module.loss_of(outputs.bfloat16(), targets), expected)
