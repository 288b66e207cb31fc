# SPDX-License-Identifier: Apache-2.0
"""Which framework a script trains with, from its source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatwise.tap.script_framework import framework_of, keras_backend_of, uses_of

TORCH, KERAS, JAX = "torch", "keras", "jax"

ROWS = [
    ("import torch\nloss.backward()", TORCH),
    ("import numpy", TORCH),
    ("print('no import')", TORCH),
    ("import torch\nimport jax\nloss.backward()", TORCH),
    ("from torch.utils.data import DataLoader\nimport jax, optax\njax.value_and_grad(f)", JAX),
    ("from jax import grad", JAX),
    ("import jax.numpy as jnp\nimport torch", TORCH),
    ("import jax", JAX),
    ("import tensorflow_datasets as tfds\nimport tensorflow as tf\nfrom flax import nnx", JAX),
    ("import equinox as eqx", JAX),
    ("import keras\nimport torch\nloss.backward()", KERAS),
    ("import keras, jax\njax.value_and_grad(f)", KERAS),
    ("import tensorflow as tf\ntf.keras.Sequential()", KERAS),
    ("from tensorflow import keras", KERAS),
    ("from tensorflow.keras import layers", KERAS),
    ("import tensorflow as tf\ntf.GradientTape()", KERAS),
    ("from keras.layers import Dense", KERAS),
    ("import keras_hub", KERAS),
    ("def train():\n    import keras", KERAS),
    ("import keras\nimport optax\nkeras.utils.to_categorical(y)", JAX),
    ("from keras.datasets import mnist\nimport torch\nloss.backward()", TORCH),
    ("import tensorflow as tf\nimport torch\ntf.keras.datasets.mnist\nloss.backward()", TORCH),
    ("from keras.utils import to_categorical\nfrom keras import layers", KERAS),
    ("import keras\nkeras.utils.set_random_seed(0)\nkeras.Sequential()", KERAS),
    ("from tensorflow.keras.utils import to_categorical\nimport equinox", JAX),
    ("import keras(", TORCH),
    ("\0", TORCH),
]


@pytest.mark.parametrize(("source", "framework"), ROWS)
def test_a_script_trains_with_the_framework_it_takes_gradients_in(source: str, framework: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert framework_of(script) == framework


def test_a_missing_script_counts_as_pytorchs(tmp_path: Path) -> None:
    assert framework_of(tmp_path / "none.py") == TORCH


@pytest.mark.parametrize(
    "line",
    [
        "import model",
        "from model import net",
        "from parts import net",
        "from parts.net import Net",
        "import parts.net",
        "from parts.deep import net",
    ],
)
def test_the_users_own_modules_are_followed(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(line)
    (tmp_path / "model.py").write_text("import train\nimport keras")
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    (tmp_path / "parts" / "__init__.py").write_text("from . import net\n")
    (tmp_path / "parts" / "net.py").write_text("import keras")
    (tmp_path / "parts" / "deep" / "__init__.py").write_text("from ..net import Net\n")
    assert framework_of(tmp_path / "train.py") == KERAS


@pytest.mark.parametrize(
    ("source", "variable", "configured", "backend"),
    [
        ("import keras", None, None, "tensorflow"),
        ("import keras", None, '{"backend": "torch"}', "torch"),
        ("import keras", "jax", '{"backend": "torch"}', "jax"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras", "jax", None, "torch"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')\nimport keras", "jax", None, "jax"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'torch')\nimport keras", None, None, "torch"),
        ("import keras", None, "{broken", "tensorflow"),
        ("import keras", None, "[]", "tensorflow"),
    ],
)
def test_keras_backend_is_found_in_keras_own_order(
    source: str,
    variable: str | None,
    configured: str | None,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if variable is not None:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if configured is not None:
        (tmp_path / "keras.json").write_text(configured)
    assert keras_backend_of(script) == backend


@pytest.mark.parametrize(
    "source", ["import tf_keras", "from tf_keras import layers", "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'"]
)
def test_keras_2_is_recognised(source: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert uses_of(script).legacy_keras
