# SPDX-License-Identifier: Apache-2.0
"""Unmodified JAX scripts recorded in processes of their own."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tap.running import as_main

from floatwise.errors import ScriptError
from floatwise.planner.children import RECORDING_CHILDREN
from floatwise.probe.recording import Recording, load_recording
from floatwise.tap.execute import run_script
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

TRAIN_STATE = """
import jax, numpy as np, optax
import flax.linen as nn
from flax.training.train_state import TrainState
from jax import value_and_grad
from pathlib import Path

class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.relu(nn.Dense(32)(x))
        x = nn.BatchNorm(use_running_average=False)(x)
        return nn.Dense(4)(nn.Dropout(0.1, deterministic=False)(x))

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 16)).astype("float32"), rng.integers(0, 4, 64)
net = Net()
variables = net.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)
state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=optax.adam(1e-2))
stats = variables["batch_stats"]

@jax.jit
def step(state, stats, key):
    def loss_fn(params):
        given = {"params": params, "batch_stats": stats}
        logits, new = state.apply_fn(given, x, rngs={"dropout": key}, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new
    (loss, new), grads = value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), new["batch_stats"], loss

for i in range(STEPS):
    state, stats, loss = step(state, stats, jax.random.fold_in(jax.random.key(2), i))
    print(repr(float(loss)))
Path("ended").write_text("")
"""

GAN = """
import jax, jax.numpy as jnp, numpy as np
rng = np.random.default_rng(0)
real, noise = rng.normal(size=(32, 8)).astype("float32"), rng.normal(size=(32, 4)).astype("float32")

def made(*sizes):
    return {f"layer{i}": {"w": jnp.asarray(rng.normal(size=s) / 4, jnp.float32)} for i, s in enumerate(sizes)}

generator, critic = made((4, 16), (16, 8)), made((8, 24), (24, 1))

def net(p, x):
    return jax.nn.relu(x @ p["layer0"]["w"]) @ p["layer1"]["w"]

def critics_loss(critic, generator):
    return jnp.mean(jax.nn.softplus(-net(critic, real)) + jax.nn.softplus(net(critic, net(generator, noise))))

def generators_loss(generator, critic):
    return jnp.mean(jax.nn.softplus(-net(critic, net(generator, noise))))

def updated(p, grads):
    return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

of_critic, of_generator = (jax.jit(jax.value_and_grad(loss)) for loss in (critics_loss, generators_loss))
for i in range(20):
    for part in range(2):  # the critic is trained twice as often
        loss, grads = of_critic(critic, generator)
        critic = updated(critic, grads)
    loss, grads = of_generator(generator, critic)
    generator = updated(generator, grads)
"""

BRANCHES = """
import jax, jax.numpy as jnp
def loss(w):
    value = jnp.sum(jnp.ones((2, 3)) @ w)
    return value if value > 0 else -value
w = jnp.ones((3, 2))
for i in range(3):
    w = w - 0.1 * jax.grad(loss)(w)
"""

NO_GRADIENT = "import jax.numpy as jnp\nprint(jnp.ones(3).sum())\n"


def record(source: str, folder: Path, steps: int, **options: Any) -> tuple[Recording, list[dict[str, Any]]]:
    (folder / "train.py").write_text(source)
    output = folder / "train.recording"
    job = Job(str(folder / "train.py"), (), steps, output=str(output), **options)
    with Child(RECORDING_CHILDREN["jax"], job, "recording") as child:
        messages = list(child.messages())
    return load_recording(output), messages


def alone(source: str, folder: Path) -> list[float]:
    (folder / "alone.py").write_text(source)
    output = io.StringIO()
    with as_main(folder), redirect_stdout(output):
        run_script("alone.py", ())
    return [float(line) for line in output.getvalue().split()]


def test_a_training_loop_is_recorded_as_it_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording, messages = record(TRAIN_STATE.replace("STEPS", "2000"), tmp_path, 5)
    assert not (tmp_path / "ended").exists()  # it was stopped
    losses = alone(TRAIN_STATE.replace("STEPS", "5"), tmp_path)
    assert list(recording.losses) == losses
    assert [message["loss"] for message in messages if message["event"] == "step"] == losses
    assert recording.steps == 5
    assert recording.parameters == 16 * 32 + 32 + 32 + 32 + 32 * 4 + 4
    sites = {site.path: site for site in recording.sites}
    for path in ("Dense_0", "Dense_1"):
        assert (sites[path].kind, sites[path].calls) == ("linear", 5)
        assert {recording.summaries[path, r].observations for r in ("input", "output", "grad_output")} == {5}
    x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    assert recording.summaries["Dense_0", "input"].amax == np.abs(x).max()
    assert {stall.parameter for stall in recording.stalls} >= {"Dense_0.kernel", "BatchNorm_0.scale"}
    assert recording.optimizers == ("optax",)


def test_other_seeds_give_other_losses_and_a_script_may_end_early(tmp_path: Path) -> None:
    source = TRAIN_STATE.replace("STEPS", "3").replace('Path("ended")', f'Path("{tmp_path / "ended"}")')
    recording, _ = record(source, tmp_path, 50, seed_offset=1)
    assert recording.steps == len(recording.losses) == 3
    assert (tmp_path / "ended").exists()
    assert recording.losses[0] != alone(source, tmp_path)[0]
    assert recording.summaries["Dense_1", "grad_output"].observations == 3


def test_two_networks_of_the_same_names_are_told_apart(tmp_path: Path) -> None:
    recording, _ = record(GAN, tmp_path, 4)
    assert recording.steps == 4
    weights = {path for path, role in recording.summaries if role == "weight_grad"}
    assert weights == {f"{who}layer{i}.w" for who in ("", "generator.") for i in range(2)}
    sites = {site.path: site for site in recording.sites}
    assert (sites["layer0"].n, sites["generator.layer0"].n) == (24, 16)


@pytest.mark.parametrize(
    ("source", "message"),
    [(BRANCHES, r"train.py:5: the loss function cannot be traced"), (NO_GRADIENT, "were never called")],
)
def test_what_shows_nothing_fails_with_what_to_do(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=message):
        record(source, tmp_path, 3)


def test_a_loop_of_tiny_steps_ends_with_its_last_wanted_one(tmp_path: Path) -> None:
    source = f"""
import jax
step, w = jax.jit(jax.value_and_grad(lambda w: (w * w).sum())), jax.numpy.ones((4, 4))
for number in range(500):
    loss, grads = step(w)
    w = w - 0.1 * grads
    with open({str(tmp_path / "steps")!r}, "a") as file:
        file.write(f"{{float(loss)}}\\n")
"""
    recording, _ = record(source, tmp_path, 6)
    assert recording.steps == 6
    assert (tmp_path / "steps").read_text().count("\n") <= 7
