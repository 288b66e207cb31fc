# SPDX-License-Identifier: Apache-2.0
"""Gradients under a loss scale are those without one, on every step; mpx's are halved whenever its scale grows."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import floatwise as fw
from floatwise.errors import BadInputError
from floatwise.jax import LossScale

X = jax.random.normal(jax.random.key(2), (8, 4))
Y = X.sum(1, keepdims=True)


@cache
def mlp() -> Any:
    return eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))


def loss_fn(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    out = jax.vmap(model)(x)
    return jnp.mean((out.astype(jnp.float32) - y.astype(jnp.float32)) ** 2)


def norm(grads: Any) -> float:
    leaves = [leaf for leaf in jax.tree.leaves(grads) if eqx.is_array(leaf)]
    return float(jnp.sqrt(sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)))


def test_mpx_halves_the_gradients_when_its_scale_grows() -> None:
    mpx = pytest.importorskip("mpx", reason="mixed-precision-for-jax is not installed")
    reference = norm(eqx.filter_grad(loss_fn)(mlp(), X, Y))
    scale = mpx.DynamicLossScaling(jnp.float32(2**10), jnp.float32(1.0), period=3)
    ratios = []
    for _ in range(4):
        _, scale, _, grads = mpx.filter_value_and_grad(loss_fn, scale)(mlp(), X, Y)
        ratios.append(norm(grads) / reference)
    assert min(ratios) == pytest.approx(0.5, rel=0.02)
    assert max(ratios) == pytest.approx(1.0, rel=0.02)


def test_gradients_do_not_change_when_the_scale_grows() -> None:
    reference = eqx.filter_grad(loss_fn)(mlp(), X, Y)
    scale = LossScale.dynamic(initial_scale=2.0**10, growth_interval=3, growth="fixed")
    scales = []
    step = eqx.filter_jit(lambda s, m: fw.jax.value_and_grad(loss_fn, s)(m, X, Y))
    for _ in range(8):
        value, grads, finite, scale = step(scale, mlp())
        scales.append(float(scale.value))
        assert bool(finite)
        assert float(value) == pytest.approx(float(loss_fn(mlp(), X, Y)))
        assert norm(grads) == pytest.approx(norm(reference), rel=1e-5)
    assert scales == [2.0**10] * 2 + [2.0**11] * 3 + [2.0**12] * 3


def test_small_gradients_survive_float16_only_under_a_scale() -> None:
    fn = fw.jax.cast(lambda w, x: (x @ w).mean() * 1e-6, "p=f32,c=f16,o=f32")
    w, x = jnp.ones((4, 4)), jnp.full((2, 4), 2.0**-7)
    assert norm(jax.grad(fn)(w, x)) == 0
    got = fw.jax.value_and_grad(fn, LossScale.static(2.0**14))(w, x).grads
    exact = jax.grad(lambda w, x: (x @ w).mean() * 1e-6)(w, x)
    np.testing.assert_allclose(got, exact, rtol=2e-2)


def test_an_overflow_skips_and_backs_off() -> None:
    fn = fw.jax.cast(lambda w, x: (x @ w).sum().astype(jnp.float32), "p=f32,c=f16,o=f32")
    got = fw.jax.value_and_grad(fn, LossScale.dynamic())(jnp.ones((4, 1)), jnp.full((1, 4), 100.0))
    assert not bool(got.finite)
    assert float(got.loss_scale.value) == 2.0**15
    assert not bool(got.loss_scale.loss_was_bad)


def test_leaves_without_gradient_get_none_and_aux_comes_along() -> None:
    params = {"w": jnp.ones(2), "steps": jnp.int32(3), "act": jnp.tanh}

    def fn(p: Any, x: jax.Array) -> tuple[jax.Array, int]:
        return (p["act"](p["w"]) * x).sum() * p["steps"], 7

    (loss, aux), grads, _, _ = fw.jax.value_and_grad(fn, LossScale.static(8.0), has_aux=True)(params, jnp.ones(2))
    assert aux == 7
    assert float(loss) == pytest.approx(6 * np.tanh(1))
    assert (grads["steps"], grads["act"]) == (None, None)
    np.testing.assert_allclose(grads["w"], 3 * (1 - np.tanh(1) ** 2) * np.ones(2), rtol=1e-6)


def test_gradients_of_several_arguments() -> None:
    scale = LossScale.static(4.0)
    got = fw.jax.value_and_grad(lambda a, b: (a * b).sum(), scale, argnums=(0, 1))(jnp.float32(2), jnp.float32(3))
    assert [float(grad) for grad in got.grads] == [3, 2]
    with pytest.raises(BadInputError, match="no floating-point array in argument 1"):
        fw.jax.value_and_grad(lambda a, b: a.sum(), scale, argnums=1)(jnp.float32(2), jnp.int32(3))
