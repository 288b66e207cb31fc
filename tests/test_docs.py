# SPDX-License-Identifier: Apache-2.0
"""The code in docs/ runs, and both languages show the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporters.running import run_program
from torch import nn

from floatwise.plan import RECIPES

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = ("pytorch.md", "keras.md", "jax.md", "loss-scaling.md", "rehearsal.md")
PAIRS = [(name, name.replace(".md", ".zh-CN.md")) for name in NAMES]
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for pair in PAIRS for name in pair}


def blocks(text: str) -> list[str]:
    """Returns the Python blocks, without their comments."""
    return [re.sub(r"\s+#.*", "", block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("pair", PAIRS)
def test_both_languages_have_the_same_code_sections_and_tables(pair: tuple[str, str]) -> None:
    english, chinese = (PAGES[name] for name in pair)
    assert blocks(english) == blocks(chinese)
    for mark in (r"^## ", r"^\|", r"^- "):
        assert len(re.findall(mark, english, re.MULTILINE)) == len(re.findall(mark, chinese, re.MULTILINE)), mark


@pytest.mark.parametrize("name", PAGES)
def test_names_and_links(name: str) -> None:
    for recipe in re.findall(r"`((?:bf16|fp16|fp8)-[a-z]+|tf32|fp32)`", PAGES[name]):
        assert recipe in RECIPES
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[name]):
        assert (DOCS / target).exists(), target


def test_every_block_runs_after_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "torch": torch,
        "make_model": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)),
        "criterion": lambda output, target: nn.functional.mse_loss(output.float(), target),
        "loader": [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(8)],
    }
    for number, block in enumerate(blocks(PAGES["pytorch.md"])):
        if "make_model" in block and "precision" in names:
            names["precision"].close()  # the next model is another
        exec(compile(block, f"docs/pytorch.md, block {number}", "exec"), names)
    assert names["info"].stepped
    assert names["average"].updates == 8
    assert next(names["model"].parameters()).dtype is torch.bfloat16
    assert names["policy"].param_dtype is torch.bfloat16


def test_every_block_on_rehearsal_runs_after_those_before_it() -> None:
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "torch": torch,
        "make_model": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)),
        "criterion": nn.functional.mse_loss,
        "batches": [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(4)],
    }
    for number, block in enumerate(blocks(PAGES["rehearsal.md"])):
        exec(compile(block, f"docs/rehearsal.md, block {number}", "exec"), names)
    assert (names["verdict"].status, names["plan"].recipe) == ("accept", "fp16-mixed")


JAX = """
import json, jax, optax
import jax.numpy as jnp

keys = jax.random.split(jax.random.key(0), 3)
params = {"hidden": jax.random.normal(keys[0], (8, 16)), "head": jax.random.normal(keys[1], (16, 1)) / 4}
x = jax.random.normal(keys[2], (4, 8))
batches = [(x, x.sum(1, keepdims=True))] * 3

def loss_fn(params, batch):
    hidden = jnp.tanh(batch[0] @ params["hidden"])
    return jnp.mean((hidden @ params["head"] - batch[1]).astype(jnp.float32) ** 2)

@jax.jit
def train_step(params, batch):
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss_fn)(params, batch))

"""
KERAS = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy

inputs = numpy.ones((16, 8), "float32")
targets = numpy.ones((16, 1), "float32")

def make_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])

"""


@pytest.mark.slow
def test_every_block_on_jax_runs_after_those_before_it(tmp_path: Path) -> None:
    pytest.importorskip("optax")
    told = """
print(json.dumps([recording.steps, recording.framework, str(small["head"].dtype), float(scale.value)]))
"""
    assert run_program(JAX + "".join(blocks(PAGES["jax.md"])) + told, tmp_path) == [4, "jax", "bfloat16", 2.0**14]
    assert (tmp_path / "step.recording").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_every_block_on_keras_runs_after_those_before_it(backend: str, tmp_path: Path) -> None:
    told = """
print(json.dumps([applied.optimizer, float(loss) > 0, sorted(census.formats())]))
"""
    printed = run_program(KERAS + "".join(blocks(PAGES["keras.md"])) + told, tmp_path, KERAS_BACKEND=backend)
    # Keras multiplies float16 matrices in float32 where PyTorch computes on a CPU (keras/src/backend/torch, 3.15).
    formats = ["float32*float32"] if backend == "torch" else ["float16*float16", "float32*float32"]
    assert printed == ["LossScaleOptimizer(Adam)", True, formats]
