# SPDX-License-Identifier: Apache-2.0
"""A step with non-finite gradients leaves weights and optimizer as they were; optax's own wrapper gives in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest

import floatwise as fw
from floatwise.errors import BadInputError
from floatwise.jax.skipping import SkipReport

PARAMS = {"w": jnp.array([1.0, -0.0, 0.0, 2.0]), "b": jnp.array([0.5])}
GOOD = {"w": jnp.ones(4), "b": jnp.ones(1)}
BAD = {"w": jnp.array([1.0, jnp.inf, 1.0, 1.0]), "b": jnp.ones(1)}


def stepper(optimizer: Any) -> Any:
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step)


def test_optax_applies_the_nan_after_a_while() -> None:
    optimizer = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=3)
    step, params, state = stepper(optimizer), PARAMS, optimizer.init(PARAMS)
    for _ in range(5):
        params, state = step(params, state, jax.tree.map(lambda g: g * jnp.nan, BAD))
    assert jnp.isnan(params["w"]).all()


def test_skipped_steps_change_nothing_and_are_counted() -> None:
    optimizer = fw.jax.skip_if_not_finite(optax.adamw(0.1))
    step, params, state = stepper(optimizer), PARAMS, optimizer.init(PARAMS)
    params, state = step(params, state, GOOD)
    before = jax.tree.map(np.asarray, (params, state.inner_state))
    for _ in range(50):
        params, state = step(params, state, BAD)
    after = jax.tree.map(np.asarray, (params, state.inner_state))
    assert jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), before, after))
    assert fw.jax.skip_report(state) == SkipReport(updates=51, skipped_steps=50, consecutive_skips=50)
    params, state = step(params, state, GOOD)
    assert fw.jax.skip_report(state).consecutive_skips == 0
    assert int(state.inner_state[0].count) == 2


def test_minus_zero_stays_minus_zero() -> None:
    optimizer = fw.jax.skip_if_not_finite(optax.sgd(0.1))
    params, _ = stepper(optimizer)(PARAMS, optimizer.init(PARAMS), BAD)
    assert np.signbit(params["w"]).tolist() == [False, True, False, False]


def test_a_finding_of_the_callers_counts() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), fw.jax.skip_if_not_finite(optax.sgd(0.1)))
    state = optimizer.init(PARAMS)
    updates, state = optimizer.update(GOOD, state, PARAMS, finite=jnp.bool_(False))
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    assert fw.jax.skip_report(state).skipped_steps == 1


def test_a_report_needs_the_wrapper() -> None:
    with pytest.raises(BadInputError, match="wrap the optimizer with it"):
        fw.jax.skip_report(optax.adam(0.1).init(PARAMS))


def test_float16_training_recovers_from_a_scale_that_is_too_large() -> None:
    x = jax.random.normal(jax.random.key(0), (32, 4))
    y = x @ jnp.array([[1.0], [-2.0], [3.0], [0.5]])
    loss_fn = fw.jax.cast(lambda w, x, y: jnp.mean((x @ w - y).astype(jnp.float32) ** 2), "p=f32,c=f16,o=f32")
    optimizer = fw.jax.plan_optimizer(optax.sgd(0.1), "fp16-mixed")

    def step(carry: Any, _: Any) -> Any:
        w, state, scale = carry
        got = fw.jax.value_and_grad(loss_fn, scale)(w, x, y)
        updates, state = optimizer.update(got.grads, state, w)
        return (optax.apply_updates(w, updates), state, got.loss_scale), got.value

    w = jnp.zeros((4, 1))
    start = (w, optimizer.init(w), fw.jax.LossScale.dynamic(initial_scale=2.0**24))
    (_, state, scale), losses = jax.jit(lambda start: jax.lax.scan(step, start, None, length=80))(start)
    assert 0 < fw.jax.skip_report(state).skipped_steps < 20
    assert fw.jax.skip_report(state).skipped_steps == scale.report().skipped_steps
    assert float(losses[-1]) < 1e-3 * float(losses[0])
