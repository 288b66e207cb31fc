# SPDX-License-Identifier: Apache-2.0
"""Is the loss really scaled: by the way the scale takes through a step, with every library's scale."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jmp  # type: ignore[import-untyped]
import pytest
from flax.training.dynamic_scale import DynamicScale

import floatwise as fw
from floatwise.jax import LossScale

F16 = "params=float32,compute=float16,output=float32"
W, X = jnp.ones((4, 4)), jnp.ones((2, 4))


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w @ w).astype(jnp.float32).mean()


def step_with(policy: str) -> Any:
    cast = fw.jax.cast(loss, policy)

    @jax.jit
    def step(w: jax.Array, scale: LossScale, x: jax.Array) -> Any:
        _, grads, _, scale = fw.jax.value_and_grad(cast, scale)(w, x)
        return w - 0.1 * grads, scale

    return step


def flax_step(w: jax.Array, scale: DynamicScale, x: jax.Array) -> Any:
    scale, _, _, grads = scale.value_and_grad(fw.jax.cast(loss, F16))(w, x)
    return w - 0.1 * grads, scale


def jmp_step(w: jax.Array, scale: Any, x: jax.Array) -> Any:
    cast = fw.jax.cast(loss, F16)
    return w - 0.1 * scale.unscale(jax.grad(lambda w: scale.scale(cast(w, x)))(w))


def forgetful_step(w: jax.Array, scale: LossScale, x: jax.Array) -> Any:
    # Unscaled though never scaled: the update is 65536 times too small, and the loss looks healthy.
    return w - 0.1 * scale.unscale(jax.grad(fw.jax.cast(loss, F16))(w, x)), scale.update(jnp.bool_(True))


def plain_step(w: jax.Array, x: jax.Array) -> Any:
    return w - 0.1 * jax.grad(fw.jax.cast(loss, F16))(w, x)


def scanning_step(w: jax.Array, scale: LossScale, xs: jax.Array) -> Any:
    def one(carry: Any, x: jax.Array) -> Any:
        w, scale = carry
        _, grads, _, scale = fw.jax.value_and_grad(fw.jax.cast(loss, F16), scale)(w, x)
        return (w - 0.1 * grads, scale), None

    return jax.lax.scan(one, (w, scale), xs)[0]


@pytest.mark.parametrize(
    ("step", "args", "state"),
    [
        (step_with(F16), (W, LossScale.dynamic(), X), "present"),
        (step_with("bf16-mixed"), (W, LossScale.dynamic(), X), "not_needed"),
        (flax_step, (W, DynamicScale(), X), "present"),
        (jmp_step, (W, jmp.DynamicLossScale(jnp.float32(8)), X), "present"),
        (jmp_step, (W, jmp.StaticLossScale(jnp.float32(8)), X), "fixed"),
        (scanning_step, (W, LossScale.dynamic(), X[None]), "present"),
        (forgetful_step, (W, LossScale.dynamic(), X), "unused"),
        (plain_step, (W, X), "missing"),
    ],
    ids=["ours", "bfloat16", "flax", "jmp", "jmp static", "scan", "unscaled only", "none"],
)
def test_the_state_of_loss_scaling_is_told(step: Any, args: tuple[Any, ...], state: str) -> None:
    got = fw.jax.loss_scaling(step, *args)
    assert got.state == state
    assert [finding.code for finding in got.findings] == {
        "missing": ["loss_scale_missing"],
        "unused": ["loss_scale_unused"],
    }.get(state, [])


def test_products_of_the_backward_pass_are_the_scaled_ones() -> None:
    got = fw.jax.loss_scaling(step_with(F16), W, LossScale.dynamic(), X)
    # Two products forward; backward two for the weights and one for the value between.
    assert (got.float16_products, got.scaled_products) == (5, 3)


def test_findings_speak_two_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = fw.jax.loss_scaling(plain_step, W, X).findings
    assert str(finding).startswith("The step multiplies in float16 and none of its arguments is a loss scale")
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    assert "损失缩放" in str(finding)
