# SPDX-License-Identifier: Apache-2.0
"""What a script trains with is found, and what is missing of it is said, by every command that needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from floatwise.planner.children import RECORDING_CHILDREN, TRAINING_CHILDREN

CHILDREN = (RECORDING_CHILDREN, TRAINING_CHILDREN)
COMMANDS = (("plan",), ("run", "--recipe", "fp32"))


def refused(floatwise: Call, script: Path, *said: str, options: tuple[str, ...] = ()) -> None:
    """Both commands end with 2 and these words, without a traceback."""
    for command, *more in COMMANDS:
        outcome = floatwise(command, script, *more, *options)
        assert outcome.code == 2
        assert "Traceback" not in outcome.err
        for words in said:
            assert words in outcome.err


def script(here: Path, source: str) -> Path:
    path = here / "train.py"
    path.write_text(source)
    return path


def only(monkeypatch: pytest.MonkeyPatch, *installed: str) -> None:
    """Of the frameworks, these alone are installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in installed else None)


ROWS = [
    ("import torch\nloss.backward()", (), {}, ("this needs PyTorch", "pip install 'floatwise[torch]'")),
    (
        "import jax\njax.grad(f)",
        ("torch",),
        {},
        ("train.py trains with JAX, which is not installed", "pip install 'floatwise[jax]'", "--framework torch"),
    ),
    ("import optax", ("torch", "keras"), {}, ("train.py trains with JAX, which is not installed",)),
    (
        "import keras",
        ("torch",),
        {},
        ("trains with Keras, which is not installed", "'floatwise[keras]' and tensorflow"),
    ),
    (
        "import keras",
        ("keras", "jax"),
        {},
        ("trains with Keras on tensorflow, which is not installed", "KERAS_BACKEND=jax"),
    ),
    (
        "import keras",
        ("keras", "tensorflow", "torch"),
        {"KERAS_BACKEND": "jax"},
        ("Keras on jax, which is not installed", "KERAS_BACKEND=tensorflow or torch"),
    ),
    ("import keras", ("keras",), {}, ("pip install tensorflow, or jax, or torch",)),
    (
        "import os\nos.environ['KERAS_BACKEND'] = 'numpy'\nimport keras",
        ("keras",),
        {},
        ("Keras would compute with 'numpy', which cannot train", "KERAS_BACKEND=tensorflow, jax or torch"),
    ),
    ("import tf_keras", ("keras", "tensorflow"), {}, ("asks for Keras 2", "TF_USE_LEGACY_KERAS", "Keras 3")),
]


@pytest.mark.parametrize(("source", "installed", "environment", "said"), ROWS)
def test_what_is_not_installed_is_said(
    source: str,
    installed: tuple[str, ...],
    environment: dict[str, str],
    said: tuple[str, ...],
    floatwise: Call,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, *installed)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(here))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(floatwise, script(here, source), *said)


def test_keras_2_that_is_installed_is_named(floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "keras", "tensorflow")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.15.0")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    refused(floatwise, script(here, "import keras"), "installed is 2.15.0, needed is 3.5 or newer")


def test_the_user_may_say_what_a_script_trains_with(
    floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch)
    path = script(here, "import numpy")
    refused(floatwise, path, "trains with JAX", options=("--framework", "jax"))
    refused(floatwise, path, "unknown framework 'jaxx'", "did you mean 'jax'", options=("--framework", "jaxx"))


@pytest.mark.slow
def test_keras_and_jax_scripts_need_no_pytorch() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("keras")
    modules = [module for room in CHILDREN for name, module in room.items() if name != "torch"]
    modules += ["floatwise.jax.script.run", "floatwise.keras.script.run", "floatwise.probe.jax_library"]
    code = f"import importlib, sys; sys.modules['torch'] = None; [importlib.import_module(m) for m in {modules}]"
    subprocess.run([sys.executable, "-c", code], check=True)
