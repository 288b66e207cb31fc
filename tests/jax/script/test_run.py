# SPDX-License-Identifier: Apache-2.0
"""Scripts trained under a plan in this process: what they compute, what is told, and that nothing stays replaced."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from floatwise.errors import PlanError, ScriptError
from floatwise.jax.script.run import UnderPlan, run_under_plan
from floatwise.plan import Plan, recipe

HEAD = """
import sys
from functools import partial
import jax, jax.numpy as jnp, optax
x = jax.random.normal(jax.random.key(1), (32, 8))
y = jnp.sin(x).sum(1, keepdims=True)
params = {"a": {"w": jax.random.normal(jax.random.key(2), (8, 16)) * 0.3},
          "b": {"w": jax.random.normal(jax.random.key(3), (16, 1)) * 0.3}}
opt = optax.adam(1e-2)
state = opt.init(params)
def loss_fn(params, x, y):
    return ((jnp.tanh(x @ params["a"]["w"]) @ params["b"]["w"] - y) ** 2).mean()
def update(params, state, grads):
    updates, state = opt.update(grads, state, params)
    return optax.apply_updates(params, updates), state
"""

SCRIPTS = {
    "a jitted step that donates": """
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return *update(params, state, grads), loss
    for _ in range(8):
        params, state, loss = step(params, state, x, y)
    """,
    "eager, with auxiliary data": """
    def both(params, x, y):
        loss = loss_fn(params, x, y)
        return loss, {"loss": loss}
    for _ in range(8):
        grads, info = jax.grad(both, has_aux=True)(params, x, y)
        params, state = update(params, state, grads)
    loss = info["loss"]
    """,
    "scan over steps": """
    def body(carry, _):
        loss, grads = jax.value_and_grad(loss_fn)(carry[0], x, y)
        return update(*carry, grads), loss
    (params, state), losses = jax.jit(lambda c: jax.lax.scan(body, c, None, length=8))((params, state))
    loss = losses[-1]
    """,
    "gradients of each example": """
    @jax.jit
    def step(params, state):
        losses, grads = jax.vmap(jax.value_and_grad(loss_fn), (None, 0, 0))(params, x[:, None], y[:, None])
        grads = jax.tree.map(lambda g: g.mean(0), grads)
        return *update(params, state, grads), losses.mean()
    for _ in range(8):
        params, state, loss = step(params, state)
    """,
    "pmap": """
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        grads = jax.lax.pmean(grads, "devices")
        return *update(params, state, grads), loss
    step = jax.pmap(step, axis_name="devices", in_axes=(None, None, 0, 0), out_axes=(None, None, 0))
    for _ in range(8):
        params, state, loss = step(params, state, x[None], y[None])
    """,
    "shard_map": """
    from jax.sharding import PartitionSpec as P
    mesh = jax.sharding.Mesh(jax.devices(), ("devices",))
    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("devices"), P("devices")), out_specs=(P(), P(), P()))
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return *update(params, state, grads), jax.lax.pmean(loss, "devices")
    for _ in range(8):
        params, state, loss = step(params, state, x, y)
    """,
    "a gradient of a gradient": """
    def penalised(params, x, y):
        return loss_fn(params, x, y) + 1e-3 * (jax.grad(loss_fn, argnums=1)(params, x, y) ** 2).sum()
    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(penalised)(params, x, y)
        return *update(params, state, grads), loss
    for _ in range(8):
        params, state, loss = step(params, state)
    """,
    "Equinox": """
    import equinox as eqx
    model = eqx.nn.MLP(8, 1, 16, 1, key=jax.random.key(0))
    state = opt.init(eqx.filter(model, eqx.is_inexact_array))
    @eqx.filter_jit
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(lambda m: ((jax.vmap(m)(x) - y) ** 2).mean())(model)
        updates, state = opt.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, loss
    for _ in range(8):
        model, state, loss = step(model, state)
    """,
    "Flax nnx": """
    from flax import nnx
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.a, self.b = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
        def __call__(self, x):
            return self.b(nnx.relu(self.norm(self.a(x))))
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, opt, wrt=nnx.Param)
    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss
    for _ in range(8):
        loss = step(model, optimizer)
    """,
    "Haiku": """
    import haiku as hk
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([16, 1])(x)))
    params = net.init(jax.random.key(0), x)
    state = opt.init(params)
    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda p: ((net.apply(p, x) - y) ** 2).mean())(params)
        return *update(params, state, grads), loss
    for _ in range(8):
        params, state, loss = step(params, state)
    """,
}


def script(folder: Path, body: str) -> str:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body) + "\nprint('loss', float(jnp.mean(loss)))\n")
    return str(path)


def final_loss(text: str) -> float:
    return float(text.split("loss ")[-1])


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_of_all_kinds_train_as_in_float32(name: str, tmp_path: Path, capsys: Any) -> None:
    path = script(tmp_path, SCRIPTS[name])
    losses = {}
    for plan, told in (
        (recipe("fp32"), "fp32: 8 gradients"),
        (recipe("bf16-mixed"), "bf16-mixed: 8 gradients"),
        (recipe("fp16-mixed"), "fp16-mixed: 8 gradients, 0 skipped, loss scale now 256"),
    ):
        if plan.loss_scale is not None:
            plan = plan.model_copy(update={"loss_scale": plan.loss_scale.model_copy(update={"initial_scale": 256.0})})
        assert run_under_plan(plan, path, []) == 0
        captured = capsys.readouterr()
        assert captured.err == f"floatwise: {told}\n"
        losses[plan.recipe] = final_loss(captured.out)
    assert losses["bf16-mixed"] == pytest.approx(losses["fp32"], rel=0.03)
    assert losses["fp16-mixed"] == pytest.approx(losses["fp32"], rel=0.01)
    assert len(set(losses.values())) == 3


def scaled(**changes: Any) -> Plan:
    return recipe("fp16-mixed", loss_scale=changes)


JITTED = SCRIPTS["a jitted step that donates"]


@pytest.mark.parametrize("name", ["a jitted step that donates", "scan over steps", "eager, with auxiliary data"])
def test_the_loss_scale_backs_off_and_grows_inside_one_compiled_step(name: str, tmp_path: Path, capsys: Any) -> None:
    # Overflows at 2**18 and 2**17: 18 -> 16, three good steps, 17 -> 15, three good steps, 16.
    plan = scaled(initial_scale=2.0**18, backoff_factor=0.25, growth_interval=3, growth="fixed")
    run_under_plan(plan, script(tmp_path, SCRIPTS[name]), [])
    assert "8 gradients, 2 skipped, loss scale now 65536\n" in capsys.readouterr().err


def test_a_skipped_step_leaves_plain_gradient_descent_where_it_was(tmp_path: Path, capsys: Any) -> None:
    body = """
    opt = optax.sgd(1e-2)
    @jax.jit
    def step(params, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        return update(params, opt.init(params), grads)[0], loss
    after, loss = step(params, x, y)
    print(all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), params, after))))
    """
    run_under_plan(scaled(initial_scale=2.0**22), script(tmp_path, body), [])
    captured = capsys.readouterr()
    assert captured.out.startswith("True\n")
    assert "1 skipped, loss scale now 2.09715e+06" in captured.err


@pytest.mark.parametrize(
    ("body", "plan", "told"),
    [
        (
            JITTED,
            scaled(initial_scale=2.0**24, backoff_factor=0.9),
            "the last 8 steps were all skipped for gradients that are not finite, at loss scale 7.22204e+06: start "
            "with a smaller initial_scale",
        ),
        (
            "x = x * 1e6" + JITTED,
            scaled(mode="static", initial_scale=1.0),
            "1: the loss was not finite either, which no loss scale cures",
        ),
        (
            JITTED,
            recipe("bf16-mixed", modules=[{"module": "nowhere.*", "policy": {"compute_dtype": "float32"}}]),
            "the plan's nowhere.* matched no module",
        ),
        (
            "loss_fn = lambda params, x, y: (params['a']['w'] ** 2).mean()" + JITTED,
            recipe("bf16-mixed"),
            "no float32 matrix product was found in the loss: nothing was computed in bfloat16",
        ),
        (
            """
            def branching(params, x, y):
                loss = loss_fn(params, x, y)
                return loss if loss > 1e-3 else 2 * loss
            for _ in range(2):
                loss, grads = jax.value_and_grad(branching)(params, x, y)
                params, state = update(params, state, grads)
            """,
            recipe("bf16-mixed"),
            "a loss function was computed in float32, since it could not be traced: TracerBoolConversionError",
        ),
        ("loss = 0", recipe("bf16-mixed"), "the script computed no gradient with jax.grad or jax.value_and_grad"),
    ],
)
def test_what_did_not_go_well_is_told(body: str, plan: Plan, told: str, tmp_path: Path, capsys: Any) -> None:
    dedented = "\n".join(textwrap.dedent(part) for part in body.split("\n", 1))
    assert run_under_plan(plan, script(tmp_path, dedented), []) == 0
    assert told in capsys.readouterr().err


def test_what_happened_is_told_in_chinese(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    run_under_plan(scaled(initial_scale=1024.0), script(tmp_path, JITTED), [])
    assert capsys.readouterr().err == "floatwise: fp16-mixed：8 次求梯度，跳过 0 步，当前损失缩放 1024\n"


def test_the_exit_code_is_the_scripts_and_a_failure_names_its_line(tmp_path: Path, capsys: Any) -> None:
    assert run_under_plan(recipe("fp32"), script(tmp_path, "sys.exit(3)"), []) == 3
    assert run_under_plan(recipe("fp32"), script(tmp_path, "sys.exit('out of data')"), []) == 1
    assert "out of data" in capsys.readouterr().err
    with pytest.raises(ScriptError, match=r"train.py:\d+: the script failed with TypeError") as caught:
        run_under_plan(recipe("bf16-mixed"), script(tmp_path, "jax.grad(loss_fn)(params, x, 'no array')"), [])
    assert "floatwise" not in caught.value.traceback
    assert capsys.readouterr().err == ""


def test_nothing_stays_replaced() -> None:
    config: Any = jax.config
    before = (jax.grad, jax.value_and_grad, jax.jit, config.jax_default_matmul_precision)
    with UnderPlan(recipe("tf32")):
        assert jax.grad is not before[0]
        assert config.jax_default_matmul_precision == "tensorfloat32"
    assert (jax.grad, jax.value_and_grad, jax.jit, config.jax_default_matmul_precision) == before


def test_a_plan_that_cannot_be_applied_is_refused_before_the_script_starts(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="split_master"):
        run_under_plan(recipe("bf16-master"), str(tmp_path / "missing.py"), [])


def test_complex_parameters_and_half_precision_losses_are_unscaled_too() -> None:
    def loss_fn(params: Any) -> Any:
        return (jnp.abs(params["c"]) ** 2).sum() + (params["w"].astype(jnp.float16) ** 2).sum().astype(jnp.float32)

    params = {"c": jnp.array([1 + 2j, 3.0]), "w": jnp.array([1.0, 2.0]), "n": jnp.float32(1)}
    expected = jax.grad(loss_fn)(params)
    with UnderPlan(scaled(initial_scale=1024.0)) as training:
        training.tells = False
        grads = jax.jit(jax.grad(loss_fn))(params)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()) and a.dtype == b.dtype, grads, expected))
