# SPDX-License-Identifier: Apache-2.0
"""Keras projects train here on three backends: alone, and on two devices that the CPU stands for."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.scaffold.projects import run_python, write

pytest.importorskip("keras")
pytestmark = pytest.mark.slow

SMALL = ("train.py", "--micro-batch", "4", "--accumulate", "2")
#: Its forward pass gives zero, its gradient is NaN at any loss scale.
NAN_GRADIENT = "keras.ops.sqrt(0.0 * x)"


def project_of(folder: Path, backend: str, **answers: Any) -> Path:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return write(folder, framework="keras", backend=backend, size="tiny", **{"language": "en", **answers})


def report_of(project: Path, *arguments: str) -> dict[str, Any]:
    run_python(project, *arguments, "--report", "report.json")
    report: dict[str, Any] = json.loads((project / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("backend", "parallel", "task", "device", "trouble", "language", "said"),
    [
        ("tensorflow", "single", "image", "nvidia-a100", "slow", "en", "ok    precision active: bfloat16 x 13"),
        ("tensorflow", "ddp", "tabular", "nvidia-t4", "oom", "zh", "ok    精度已生效: float16 x 7, float32 x 1"),
        ("jax", "single", "text", "nvidia-a100", "none", "zh", "ok    精度已生效: bfloat16 x 14, float32 x 1"),
        ("jax", "ddp", "image", "nvidia-a100", "none", "en", "ok    precision active: bfloat16 x 13, float32 x 1"),
        ("torch", "single", "tabular", "nvidia-t4", "nan", "en", "ok    precision active: float16 x 7, float32 x 1"),
    ],
)
def test_its_own_test_passes(
    tmp_path: Path, backend: str, parallel: str, task: str, device: str, trouble: str, language: str, said: str
) -> None:
    answers = {"parallel": parallel, "task": task, "device": device, "trouble": trouble, "language": language}
    printed = run_python(project_of(tmp_path / "project", backend, **answers), "test.py")
    assert said in printed
    assert "FAIL" not in printed


@pytest.mark.parametrize(
    ("backend", "parallel"), [("tensorflow", "ddp"), ("jax", "ddp"), ("torch", "single"), ("tensorflow", "single")]
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, backend: str, parallel: str) -> None:
    project = project_of(tmp_path / "project", backend, device="t4", parallel=parallel, task="tabular")
    whole = report_of(project, *SMALL, "--steps", "6", "--out", "whole")
    report_of(project, *SMALL, "--steps", "4", "--out", "parts")
    rest = report_of(project, *SMALL, "--steps", "6", "--out", "parts", "--resume")
    assert (rest["first_step"], rest["last_step"]) == (5, 6)
    assert rest["losses"] == whole["losses"][4:]
    assert rest["evaluation"] == whole["evaluation"]


def test_a_checkpoint_of_another_precision_is_refused(tmp_path: Path) -> None:
    project = project_of(tmp_path / "project", "torch", device="t4", task="tabular")
    run_python(project, *SMALL, "--steps", "1")
    printed = run_python(project, *SMALL, "--steps", "2", "--resume", "--precision", "float32", code=2)
    assert "saved with another --precision or --accumulate" in printed


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_two_devices_train_what_one_does(tmp_path: Path, backend: str) -> None:
    losses = {}
    for parallel, batch in (("single", "16"), ("ddp", "8")):
        project = project_of(tmp_path / parallel, backend, device="p100", parallel=parallel, task="tabular")
        report = report_of(project, "train.py", "--steps", "4", "--micro-batch", batch, "--accumulate", "2")
        losses[parallel] = report["losses"]
    # The same examples and the same clipping: only the order of sums differs.
    assert losses["ddp"] == pytest.approx(losses["single"], rel=1e-4)


OVERFLOW = """
import os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
from replicas import ReplicatedModel, make_strategy
import precision
x, y = np.ones((8, 4), "float32"), np.zeros(8, int)
x[7] = 60000.0  # of the second replica
for kind in (keras.Model, ReplicatedModel):
    with make_strategy(2).scope():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(3, dtype="float32")(keras.layers.Dense(8)(inputs))
        model = kind(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(precision.scaled(keras.optimizers.SGD(0.1)), loss, jit_compile=False)
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    finite = all(bool(np.isfinite(weight).all()) for weight in model.get_weights())
    scale = float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale.value))
    print(f"RESULT {kind.__name__} {finite} {scale}")
"""


def test_an_overflow_on_the_second_replica_skips_the_step_on_both(tmp_path: Path) -> None:
    """Keras 3.15.1's own model looks at the first replica only, and its weights become NaN."""
    project = project_of(tmp_path / "project", "tensorflow", device="t4", parallel="ddp", task="tabular")
    printed = run_python(project, "-c", OVERFLOW)
    assert "RESULT Functional False" in printed or "RESULT Model False" in printed
    assert "RESULT ReplicatedModel True 32768.0" in printed


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_find_nan_names_the_layer(tmp_path: Path, backend: str) -> None:
    project = project_of(tmp_path / "project", backend, device="t4", task="tabular")
    text = (project / "model.py").read_text()
    (project / "model.py").write_text(text.replace("x + self.down(", "x + 1e9 * self.down("))
    assert "--find-nan names the layer where it begins" in run_python(project, *SMALL, "--steps", "2", code=1)
    printed = run_python(project, *SMALL, "--steps", "2", "--find-nan", code=1)
    assert "FloatingPointError: block_0 (Block): NaN or infinity in its float16 output" in printed


def test_it_stops_before_the_loss_scale_collapses(tmp_path: Path) -> None:
    project = project_of(tmp_path / "project", "torch", device="t4", task="tabular")
    text = (project / "model.py").read_text()
    (project / "model.py").write_text(text.replace("return x + self.down(", f"return x + {NAN_GRADIENT} + self.down("))
    text = (project / "precision.py").read_text()
    (project / "precision.py").write_text(text.replace("initial_scale=65536.0", "initial_scale=4.0"))
    printed = run_python(project, *SMALL, "--accumulate", "1", "--steps", "40", code=1)
    assert "step 3: the loss scale fell to 0.5: gradients overflow at any scale." in printed
