# SPDX-License-Identifier: Apache-2.0
"""A whole training run under each plan: from the plan to casts, loss scale and optimizer, with the loss of float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
import pytest
from flax import linen

import floatwise as fw

X = jax.random.normal(jax.random.key(0), (64, 8))
LABELS = (X @ jax.random.normal(jax.random.key(1), (8, 4))).argmax(-1)
NORM_ISLAND = {"module": "norm", "policy": {"param_dtype": "float32", "compute_dtype": "float32"}}


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> Any:
        x = linen.Dense(32, name="body")(x)
        x = linen.LayerNorm(name="norm")(x)
        return linen.Dense(4, name="head")(jax.nn.gelu(x))


def plan_of(name: str) -> Any:
    recipe, _, master = name.partition("+")
    changes: dict[str, Any] = {"weights": {"master": master}} if master else {}
    return fw.plan.recipe(recipe, **changes, **({} if recipe in ("fp32", "tf32") else {"modules": [NORM_ISLAND]}))


def make(plan: Any) -> tuple[Any, Any]:
    """Returns a training step and what it starts from."""
    net = Net()
    apply = fw.jax.linen_apply(net, plan)
    optimizer = fw.jax.plan_optimizer(optax.adam(3e-3), plan)

    def loss_fn(variables: Any, x: jax.Array, labels: jax.Array) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(apply(variables, x), labels).mean()

    def step(carry: Any, _: Any) -> Any:
        variables, state, scale = carry
        got = fw.jax.value_and_grad(loss_fn, scale)(variables, X, LABELS)
        updates, state = optimizer.update(got.grads, state, variables)
        return (fw.jax.apply_updates(variables, updates), state, got.loss_scale), got.value

    variables = fw.jax.cast_params(net.init(jax.random.key(2), X), plan)
    return step, (variables, optimizer.init(variables), fw.jax.LossScale.from_plan(plan))


def train(name: str) -> Any:
    step, start = make(plan_of(name))
    return jax.jit(lambda start: jax.lax.scan(step, start, None, length=60))(start)


@pytest.fixture(scope="module")
def baseline() -> Any:
    return train("fp32")[1]


@pytest.mark.parametrize(
    ("name", "stored", "tolerance"),
    [
        ("bf16-mixed", "float32", 0.02),
        ("fp16-mixed", "float32", 0.01),
        ("bf16-master", "bfloat16", 0.03),
        ("bf16-master+kahan", "bfloat16", 0.03),
        ("bf16-master+stochastic", "bfloat16", 0.08),
        ("fp16-master", "float16", 0.02),
    ],
)
def test_plans_train_like_float32(name: str, stored: str, tolerance: float, baseline: jax.Array) -> None:
    (variables, _, scale), losses = train(name)
    assert losses.dtype == jnp.float32
    assert float(baseline[-1]) < 0.4 * float(baseline[0])
    assert float(losses[-1]) == pytest.approx(float(baseline[-1]), abs=tolerance)
    assert variables["params"]["body"]["kernel"].dtype == stored
    assert variables["params"]["norm"]["scale"].dtype == jnp.float32
    assert scale.report().updates == 60


@pytest.mark.parametrize("name", ["bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master"])
def test_a_step_is_what_the_census_says(name: str) -> None:
    plan = plan_of(name)
    step, start = make(plan)
    census = fw.jax.operator_dtypes(step, start, None, compiled=False)
    assert census.formats() == {f"{plan.compute_dtype}*{plan.compute_dtype}": 5}
    assert fw.jax.loss_scaling(step, start, None).state == (
        "present" if "float16" == plan.compute_dtype else "not_needed"
    )


def test_a_whole_step_leaks_nowhere_but_at_the_users_own_line() -> None:
    step, start = make(plan_of("bf16-master"))
    assert fw.jax.leaks(step, start, None) == ()

    def leaking(carry: Any, nothing: Any) -> Any:
        carry, loss = step(carry, nothing)
        variables, state, scale = carry
        decayed = jax.tree.map(lambda leaf: leaf * jnp.float32(0.99), variables)
        return (decayed, state, scale), loss

    found = fw.jax.leaks(leaking, start, None)
    assert {leak.line for leak in found} == {"decayed = jax.tree.map(lambda leaf: leaf * jnp.float32(0.99), variables)"}
    assert {leak.shape for leak in found} == {(8, 32), (32,), (32, 4), (4,)}
