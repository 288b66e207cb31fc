# SPDX-License-Identifier: Apache-2.0
"""Frozen weights and zero or infinite gradients behind a finite loss are named; the loss alone shows none of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
import pytest

import floatwise as fw
from floatwise.errors import BadInputError


def confident_and_wrong(gap: float) -> Any:
    """Returns loss and gradient of a softmax and a logarithm in float16, as with a head left in float16."""

    def loss(logits: jax.Array) -> Any:
        probability = jax.nn.softmax(logits.astype(jnp.float16))[1]
        clipped = jnp.maximum(probability, jnp.float16(1e-7))  # as Keras does
        return -jnp.log(clipped).astype(jnp.float32)

    return jax.value_and_grad(lambda p: loss(p["head"]))({"head": jnp.array([gap, 0.0])})


def codes(found: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.code, finding.paths) for finding in found]


def test_zero_gradients_behind_a_finite_loss() -> None:
    def loss(p: Any) -> Any:
        return 1e-9 * jnp.tanh(p["head"].astype(jnp.float16)).astype(jnp.float32).sum() + p["bias"]

    value, grads = jax.value_and_grad(loss)({"head": jnp.full(3, 0.5), "bias": 0.5})
    found = fw.jax.examine_gradients(value, grads)
    assert codes(found) == [("gradients_zero", ("head",))]
    assert "zero throughout: head" in str(found[0])


def test_infinite_gradients_behind_a_finite_loss() -> None:
    loss, grads = confident_and_wrong(20.0)
    assert float(loss) == pytest.approx(15.94, abs=0.1)
    assert codes(fw.jax.examine_gradients(loss, grads)) == [("gradients_not_finite", ("head",))]


def test_a_bad_loss_is_no_matter_of_the_scale() -> None:
    assert codes(fw.jax.examine_gradients(jnp.nan, {"w": jnp.zeros(2)})) == [("loss_not_finite", ())]


def test_healthy_gradients_are_silent() -> None:
    assert fw.jax.examine_gradients(1.0, {"w": jnp.array([0.0, 1.0]), "n": None}) == ()


def frozen_by(optimizer: Any, grad: float) -> Any:
    params = {"body": jnp.ones(8, jnp.bfloat16), "head": jnp.ones(2), "idle": jnp.ones(2, jnp.bfloat16)}
    grads = {"body": jnp.full(8, grad), "head": jnp.full(2, grad), "idle": jnp.zeros(2)}
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return codes(fw.jax.examine_update(params, optax.apply_updates(params, updates), grads))


def test_weights_frozen_by_rounding_are_named_and_kept_moving_by_ours() -> None:
    assert frozen_by(optax.sgd(1.0), 1e-3) == [("weights_frozen", ("body",))]
    assert frozen_by(fw.jax.stochastic_rounding(optax.sgd(1.0)), 4e-3) == []


def test_weights_frozen_by_a_scale_that_was_never_applied_are_named() -> None:
    def step(w: jax.Array, scale: Any, grads: jax.Array) -> Any:
        return w - 0.01 * scale.unscale(grads)

    w, grads = jnp.ones(4), jnp.full(4, 0.1)
    after = step(w, fw.jax.LossScale.dynamic(), grads)
    assert codes(fw.jax.examine_update(w, after, grads)) == [("weights_frozen", ("",))]


def test_trees_must_be_alike() -> None:
    with pytest.raises(BadInputError, match="different trees"):
        fw.jax.examine_update({"a": jnp.ones(1)}, {"b": jnp.ones(1)}, {"a": jnp.ones(1)})
