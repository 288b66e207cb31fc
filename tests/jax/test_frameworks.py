# SPDX-License-Identifier: Apache-2.0
"""Flax, Equinox and Haiku in the formats of a plan: dtypes of weights, products, outputs and gradients."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
import pytest
from flax import linen, nnx

import floatwise as fw
from floatwise.errors import BadInputError

BF16 = "params=float32,compute=bfloat16,output=float32"
NORM_ISLAND = {"module": "norm", "policy": {"compute_dtype": "float32"}}
PLAN = fw.plan.recipe("bf16-mixed", modules=[NORM_ISLAND])
X = jax.random.normal(jax.random.key(1), (4, 8))


def dtypes(tree: Any) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")}


def products(fn: Any, *args: Any) -> dict[str, int]:
    return fw.jax.operator_dtypes(fn, *args, compiled=False).formats()


class Net(linen.Module):
    batch_norm: bool = False

    @linen.compact
    def __call__(self, x: jax.Array) -> Any:
        x = linen.Dense(8, name="body")(x)
        x = linen.LayerNorm(name="norm")(x)
        if self.batch_norm:
            x = linen.BatchNorm(use_running_average=False, name="statistics")(x)
        return linen.Dense(3, name="head")(jax.nn.gelu(x))


def test_flax_takes_its_dtypes_from_a_plan() -> None:
    assert fw.jax.flax_dtypes(PLAN, "body") == {"dtype": jnp.bfloat16, "param_dtype": jnp.float32}
    assert fw.jax.flax_dtypes(PLAN, "norm") == {"dtype": jnp.float32, "param_dtype": jnp.float32}
    assert fw.jax.flax_dtypes("bf16-master")["param_dtype"] == jnp.bfloat16
    for dense in (linen.Dense(3, **fw.jax.flax_dtypes(BF16)),):
        out, variables = dense.init_with_output(jax.random.key(0), X)
        assert (out.dtype, dtypes(variables)) == (jnp.bfloat16, {"float32"})
    layer = nnx.Linear(8, 3, rngs=nnx.Rngs(0), **fw.jax.flax_dtypes(BF16))
    assert layer(X).dtype == jnp.bfloat16


def test_linen_without_dtypes_computes_in_the_widest_and_linen_apply_in_the_plans() -> None:
    net = Net()
    variables = net.init(jax.random.key(0), X)

    def total(apply: Any) -> Any:
        return lambda variables, x: apply(variables, x).astype(jnp.float32).sum()

    assert products(net.apply, variables, X.astype(jnp.bfloat16)) == {"float32*float32": 2}
    stray = fw.jax.cast(net.apply, PLAN)  # the float32 norm takes the head along
    assert products(stray, variables, X) == {"bfloat16*bfloat16": 1, "float32*float32": 1}
    apply = fw.jax.linen_apply(net, PLAN)
    assert products(apply, variables, X) == {"bfloat16*bfloat16": 2}
    assert apply(variables, X).dtype == jnp.float32
    grads = jax.jit(jax.grad(total(apply)))(variables, X)
    assert dtypes(grads) == {"float32"}
    assert jax.tree.map(jnp.shape, grads) == jax.tree.map(jnp.shape, variables)
    assert products(jax.grad(total(apply)), variables, X) == {"bfloat16*bfloat16": 5}


def test_running_statistics_stay_float32() -> None:
    net = Net(batch_norm=True)
    variables = net.init(jax.random.key(0), X)
    apply = fw.jax.linen_apply(net, BF16)
    out, changed = apply(variables, 1000.5 + X, mutable=["batch_stats"])
    assert dtypes(changed) == {"float32"}
    assert dtypes(out) == {"float32"}


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.statistics = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jax.nn.gelu(self.statistics(self.norm(self.body(x)))))


def test_nnx_models_take_a_plan_in_place() -> None:
    model = NnxNet(nnx.Rngs(0))
    assert model(X.astype(jnp.bfloat16)).dtype == jnp.float32
    given = fw.jax.set_nnx_dtypes(model, PLAN, keep_float32=["statistics"])
    assert given == {"body": "bfloat16", "head": "bfloat16", "norm": "float32", "statistics": "float32"}
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model: NnxNet, optimizer: Any, x: jax.Array) -> Any:
        def loss(model: NnxNet) -> jax.Array:
            return jnp.square(model(x).astype(jnp.float32)).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value, grads

    before = model.statistics.mean.get_value()
    first, grads = step(model, optimizer, X)
    assert dtypes(grads) == {"float32"}
    assert dtypes(nnx.state(model)) == {"float32"}
    assert (model.statistics.mean.get_value() != before).any()
    assert float(step(model, optimizer, X)[0]) < float(first)
    graph, state = nnx.split(model)
    assert products(lambda state, x: nnx.merge(graph, state)(x), state, X) == {"bfloat16*bfloat16": 2}


def test_nnx_modules_are_no_arguments_of_cast() -> None:
    with pytest.raises(BadInputError, match=r"nnx.split\(model\)"):
        fw.jax.cast(lambda model, x: model(x), BF16)(NnxNet(nnx.Rngs(0)), X)
    with pytest.raises(BadInputError, match="did you mean 'statistics'"):
        fw.jax.set_nnx_dtypes(NnxNet(nnx.Rngs(0)), BF16, keep_float32=["statistic"])


def test_equinox_models_are_trees_like_others() -> None:
    model = eqx.nn.MLP(8, 3, 8, 1, key=jax.random.key(0))
    assert jax.vmap(model)(X.astype(jnp.bfloat16)).dtype == jnp.float32  # Equinox promotes, too
    loss = fw.jax.cast(lambda m, x: jnp.square(jax.vmap(m)(x)).mean(), BF16, keep_float32=["layers.1.bias"])
    assert dtypes(eqx.filter_jit(eqx.filter_grad(loss))(model, X)) == {"float32"}
    optimizer = fw.jax.plan_optimizer(optax.sgd(0.1), "fp16-mixed")
    params, static = fw.jax.partition(model)
    expected = eqx.partition(model, eqx.is_inexact_array)
    assert bool(eqx.tree_equal((params, static), expected))

    @eqx.filter_jit
    def step(model: Any, state: Any, scale: Any) -> Any:
        got = fw.jax.value_and_grad(loss, scale)(model, X)
        updates, state = optimizer.update(got.grads, state, fw.jax.partition(model)[0])
        return fw.jax.apply_updates(model, updates), state, got.loss_scale, got.value

    state, scale, values = optimizer.init(params), fw.jax.LossScale.static(2.0**10), []
    for _ in range(3):
        model, state, scale, value = step(model, state, scale)
        values.append(float(value))
    assert values[0] > values[1] > values[2]


def test_equinox_widens_16_bit_weights_with_their_first_update() -> None:
    model = fw.jax.cast_params(eqx.nn.Linear(8, 3, key=jax.random.key(0)), "bf16-master")
    optimizer = fw.jax.split_master(optax.sgd(0.1))
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, model), optimizer.init(model), model)
    assert dtypes(eqx.apply_updates(model, updates)) == {"float32"}
    assert dtypes(fw.jax.apply_updates(model, updates)) == {"bfloat16"}
    assert {leak.shape for leak in fw.jax.leaks(lambda m, u: eqx.apply_updates(m, u), model, updates)} == {(3, 8), (3,)}
    assert fw.jax.leaks(lambda m, u: fw.jax.apply_updates(m, u), model, updates) == ()
    assert fw.jax.leaks(lambda m, u: optax.apply_updates(m, u), model, updates) == ()


class HaikuNet(hk.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        h = hk.LayerNorm(-1, True, True, name="norm")(hk.Linear(8, name="body")(x))
        return hk.Linear(3, name="head")(h)


def test_haiku_takes_policies_for_a_while() -> None:
    net = hk.transform(lambda x: HaikuNet()(x))
    policies: dict[type[Any], Any] = {HaikuNet: BF16, hk.LayerNorm: "params=float32,compute=float32,output=bfloat16"}
    with fw.jax.haiku_policies(policies):
        params = net.init(jax.random.key(0), X)
        out = net.apply(params, None, X)
        inside = products(lambda p, x: net.apply(p, None, x), params, X)
    assert (out.dtype, dtypes(params)) == (jnp.float32, {"float32"})
    assert inside == {"bfloat16*bfloat16": 2}
    assert hk.mixed_precision.get_policy(HaikuNet) is None
    assert products(lambda p, x: net.apply(p, None, x), params, X) == {"float32*float32": 2}


def test_haiku_parameters_can_be_cast_as_well() -> None:
    net = hk.transform(lambda x: HaikuNet()(x))
    params = net.init(jax.random.key(0), X)
    run = fw.jax.cast(lambda p, x: net.apply(p, None, x), BF16, keep_float32=["head"])
    assert products(run, params, X) == {"bfloat16*bfloat16": 1, "bfloat16*float32": 1}
    assert str(fw.jax.to_jmp(PLAN, "norm")) == "p=full,c=full,o=full"


@pytest.mark.parametrize(
    ("missing", "name", "advice"),
    [
        ("jax", "cast", "pip install 'floatwise[jax]'"),
        ("optax", "kahan", "pip install optax"),
        ("flax", "set_nnx_dtypes", "pip install flax"),
        ("haiku", "haiku_policies", "pip install dm-haiku"),
    ],
)
def test_what_is_not_installed_is_named(missing: str, name: str, advice: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nimport floatwise as fw\nfw.jax.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "floatwise.errors.MissingPackageError" in done.stderr
    assert advice in done.stderr.splitlines()[-1]
