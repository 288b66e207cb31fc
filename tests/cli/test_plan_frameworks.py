# SPDX-License-Identifier: Apache-2.0
"""`floatwise plan` and `run` from end to end with scripts that know nothing of it: Keras and JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from floatwise.plan import load_plan
from floatwise.probe.recording import load_recording

pytestmark = pytest.mark.slow

JAX = """
import jax, jax.numpy as jnp

keys = jax.random.split(jax.random.key(0), 3)
x = jax.random.normal(keys[0], (256, 512))
y = jnp.sin(x[:, :1])
params = {"hidden": {"kernel": jax.random.normal(keys[1], (512, 512)) / 23},
          "head": {"kernel": jax.random.normal(keys[2], (512, 1)) / 23}}


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["hidden"]["kernel"]) @ params["head"]["kernel"] - y) ** 2)


@jax.jit
def step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


for number in range(60):
    params, loss = step(params, x, y)
print("done", float(loss))
"""
KERAS = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(512, 256)).astype("float32")
y = np.sin(x[:, :1])
model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(512, activation="tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, batch_size=64, epochs=4, verbose=0)
print("done", history.history["loss"][-1])
"""


@pytest.mark.parametrize(
    ("package", "source", "options", "backend"),
    [("jax", JAX, (), ""), ("tensorflow", KERAS, ("--no-rehearse",), "tensorflow")],
)
def test_a_script_is_planned_and_run(
    package: str,
    source: str,
    options: tuple[str, ...],
    backend: str,
    floatwise: Call,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip(package)
    if backend:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    (here / "train.py").write_text(source)
    planned = floatwise("plan", "train.py", "--steps", "8", "--target", "here", "--target", "t4", "--json", *options)
    assert planned.code == 0, planned.err
    mine, t4 = planned.object["targets"]
    recording = load_recording(here / "precision.recording")
    assert (recording.framework, recording.backend) == ("keras" if backend else "jax", backend)
    # TensorFlow fuses otherwise around what is looked at; in JAX the script's own values are left alone.
    assert recording.losses == pytest.approx(mine["measured"]["losses"]["float32"], rel=1e-5 if backend else 0, abs=0)
    assert mine["measured"]["steps"] == 5
    assert set(mine["measured"]["products"]["asked"]) <= {"bfloat16", "float32"}
    assert mine["measured"]["products"]["asked"]["bfloat16"]["share"] > 0.9
    assert t4["recipe"] == "fp16-mixed"
    assert (t4["verdicts"]["fp16-mixed"]["rehearsal"] is not None) is (not options)
    assert load_plan(here / "precision-nvidia-t4.toml").loss_scale is not None
    # In a process of its own: Keras warns of its own doings, and here warnings are errors.
    command = [sys.executable, "-m", "floatwise", "run", "train.py", "--plan", "precision-nvidia-t4.toml"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "done" in ran.stdout
    assert f"floatwise: fp16-mixed: {'32 optimizer steps' if backend else '60 gradients'}" in ran.stderr
