# SPDX-License-Identifier: Apache-2.0
"""The timed child: it trains what the script trains alone, tells every iteration, and stops at the last wanted."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from floatwise.jax.script.child import TrainingChild
from floatwise.plan import Plan, dumps_plan, recipe
from floatwise.tap import execute, plain_child
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

HEAD = """
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen as nn, nnx
x = jax.random.normal(jax.random.key(1), (32, 8))
y = jnp.sin(x).sum(1, keepdims=True)
losses = []
def done(loss):
    losses.append(float(loss))
    print("LOSS", losses[-1].hex())
"""

LINEN = """
class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        x = nn.relu(nn.LayerNorm()(nn.BatchNorm(use_running_average=False)(x)))
        return nn.Dense(1)(x)
variables = Net().init(jax.random.key(0), x)
params, stats = variables["params"], variables["batch_stats"]
opt = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))
state = opt.init(params)
def loss_fn(params, stats, x, y):
    out, changed = Net().apply({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
    return ((out - y) ** 2).mean(), changed["batch_stats"]
"""

SCRIPTS = {
    "Flax linen, jitted, donated": LINEN
    + """
@partial(jax.jit, donate_argnums=(0, 1, 2))
def step(params, stats, state, x, y):
    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y)
    updates, state = opt.update(grads, state, params)
    return optax.apply_updates(params, updates), stats, state, loss
for _ in range(9):
    params, stats, state, loss = step(params, stats, state, x, y)
    done(loss)
""",
    "the gradient only, the update outside": LINEN
    + """
step = jax.jit(jax.grad(lambda p, s: loss_fn(p, s, x, y)[0]))
apply = jax.jit(lambda params, state, grads: opt.update(grads, state, params))
for _ in range(9):
    done(loss_fn(params, stats, x, y)[0])
    updates, state = apply(params, state, step(params, stats))
    params = optax.apply_updates(params, updates)
""",
    "eager": LINEN
    + """
for _ in range(9):
    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y)
    updates, state = opt.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    done(loss)
""",
    "scan over steps": LINEN
    + """
def body(carry, _):
    params, stats, state = carry
    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, stats, x, y)
    updates, state = opt.update(grads, state, params)
    return (optax.apply_updates(params, updates), stats, state), loss
carry, ended = jax.jit(lambda c: jax.lax.scan(body, c, None, length=9))((params, stats, state))
for loss in ended:
    done(loss)
""",
    "Flax nnx": """
class Model(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
    def __call__(self, x):
        return self.b(self.dropout(nnx.relu(self.a(x))))
model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
@nnx.jit
def step(model, optimizer):
    loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss
for _ in range(9):
    done(step(model, optimizer))
""",
    "methods of a class": """
class Trainer:
    def __init__(self):
        self.w = jax.random.normal(jax.random.PRNGKey(4), (8, 1))
    @partial(jax.jit, static_argnums=0)
    def step(self, w):
        loss, grads = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
        return w - 0.1 * grads, loss
trainer = Trainer()
for _ in range(9):
    trainer.w, loss = trainer.step(trainer.w)
    done(loss)
""",
}


class Stopped(BaseException):
    """Stands for the end of the process."""


class Line:
    """Stands for the line to the parent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.waits = 0

    def send(self, event: str, **values: Any) -> None:
        self.messages.append({"event": event, **values})

    def wait(self) -> None:
        self.waits += 1
        time.sleep(0.02)


#: What a child that was not measured says at its end.
DONE: dict[str, Any] = {"event": "done", "peak_bytes": None, "skipped_steps": 0, "unmatched": [], "products": None}


def train_here(
    path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, steps: int = 20, seed_offset: int = 0, paced: bool = False
) -> Line:
    """Runs the child in this process."""

    def stop() -> NoReturn:
        raise Stopped

    monkeypatch.setattr(plain_child, "stop_process", stop)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    options = {"plan": dumps_plan(plan)}
    child = TrainingChild(Job(str(path), (), steps, seed_offset=seed_offset, paced=paced, options=options))
    line = Line()
    child.channel = line  # type: ignore[assignment]
    try:
        child.main()
    except Stopped:
        pass
    finally:
        child.patches.undo()
    return line


def alone(path: Path, capsys: Any) -> list[str]:
    execute.run_script(str(path), [])
    return printed(capsys)


def printed(capsys: Any) -> list[str]:
    return [text.split()[1] for text in capsys.readouterr().out.splitlines() if text.startswith("LOSS")]


def losses_of(line: Line) -> list[str]:
    return [message["loss"].hex() for message in line.messages if message["event"] == "step"]


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(body: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return path

    return write


@pytest.mark.parametrize("name", SCRIPTS)
def test_float32_trains_bit_for_bit_what_the_script_trains_alone(
    name: str, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = script(SCRIPTS[name])
    expected = alone(path, capsys)
    line = train_here(path, monkeypatch, recipe("fp32"))
    assert printed(capsys) == expected
    assert len(expected) == 9
    if name == "the gradient only, the update outside":  # the script computes its loss in a program of its own
        ulp = 2.0**-23
        assert [float.fromhex(loss) for loss in losses_of(line)] == pytest.approx(
            [float.fromhex(loss) for loss in expected], rel=2 * ulp
        )
    else:
        assert losses_of(line) == expected
    steps = [message for message in line.messages if message["event"] == "step"]
    assert [message["timed"] for message in steps] == [False] * 3 + [True] * 6
    assert line.messages[-1] == DONE


def test_other_seeds_give_other_losses(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = script(SCRIPTS["methods of a class"])
    runs = [losses_of(train_here(path, monkeypatch, recipe("fp32"), seed_offset=offset)) for offset in (0, 1, 2)]
    assert len({run[0] for run in runs}) == 3


TIMED = """
import time
w = jax.random.normal(jax.random.key(4), (8, 1))
@jax.jit
def step(w):
    loss, grads = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
    # The update takes 30 ms.
    late = jax.pure_callback(lambda g: time.sleep(0.03) or np.asarray(g), jax.ShapeDtypeStruct(w.shape, w.dtype), grads)
    return w - 0.1 * late, loss
for _ in range(9):
    w, loss = step(w)
    time.sleep(0.01)
"""


def test_the_update_is_timed_and_the_wait_for_leave_is_not(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = train_here(script(TIMED), monkeypatch, recipe("fp32"), steps=8, paced=True)
    seconds = [message["seconds"] for message in line.messages if message.get("timed")]
    assert line.waits == 7
    # 30 ms of update and 10 ms of the script's own; the 20 ms of waiting are left out.
    assert all(0.04 <= each for each in seconds)
    assert min(seconds) < 0.055


def test_the_script_ends_after_the_last_wanted_step(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    line = train_here(script(SCRIPTS["methods of a class"]), monkeypatch, recipe("bf16-mixed"), steps=4)
    assert len(losses_of(line)) == 4
    assert capsys.readouterr().out.count("LOSS") == 3  # the fourth never came back to the script


def test_skipped_steps_unmatched_globs_and_lost_losses_are_told(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [{"module": "nowhere", "policy": {"compute_dtype": "float32"}}]
    plan = recipe("fp16-mixed", loss_scale={"initial_scale": 2.0**24, "backoff_factor": 2.0**-10}, modules=modules)
    line = train_here(script(SCRIPTS["Flax linen, jitted, donated"]), monkeypatch, plan)
    assert line.messages[-1] == {**DONE, "skipped_steps": 1, "unmatched": ["nowhere"]}


@pytest.mark.parametrize("name", ["Flax linen, jitted, donated", "Flax nnx", "eager"])
def test_a_measured_child_tells_the_formats_of_its_products(
    name: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = train_here(script(SCRIPTS[name]), monkeypatch, recipe("bf16-mixed"), paced=True)
    told = line.messages[-1]["products"]
    if name == "eager":
        assert told is None
        return
    assert set(told["asked"]) == {"bfloat16"}
    assert sum(row["share"] for row in told["ran"].values()) == pytest.approx(1)
    assert told["backend"] == "cpu"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("print('no training')", "computed no gradient with jax.grad or jax.value_and_grad"),
        ("jax.grad(lambda w: w)(jnp.ones(3))", "the script failed with TypeError: Gradient only defined for scalar"),
    ],
)
def test_a_script_that_does_not_train_is_told_of(
    body: str, told: str, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = train_here(script(body), monkeypatch, recipe("bf16-mixed"))
    assert line.messages[-1]["event"] == "failed"
    assert told in line.messages[-1]["message"]


def test_a_child_process_stops_inside_a_scan_too(script: Any) -> None:
    options = {"plan": dumps_plan(recipe("bf16-mixed"))}
    job = Job(str(script(SCRIPTS["scan over steps"])), (), 5, paced=True, options=options)
    with Child("floatwise.jax.script.child", job, "training") as child:
        events: list[str] = []
        while not events or events[-1] != "done":
            message = child.next()
            events.append(message["event"])
            if message["event"] == "step":
                child.go()
    assert events == ["started", *["step"] * 5, "done"]
