# SPDX-License-Identifier: Apache-2.0
"""Every gradient is reported once, however the script compiles and transforms it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from floatwise.jax.script.applied import AppliedPlan
from floatwise.plan import recipe
from floatwise.tap.patches import Patches

X = jax.random.normal(jax.random.key(0), (16, 8))
W = jnp.ones((8, 8)) * 0.1


def loss_fn(w: Any, x: Any) -> Any:
    return ((x @ w) ** 2).mean()


def other_loss(w: Any) -> Any:
    return (X @ w).mean()


def gradient(w: Any) -> Any:
    return jax.grad(loss_fn)(w, X)


def nested() -> None:
    inner = jax.jit(jax.value_and_grad(loss_fn))

    @jax.jit
    def step(w: Any) -> Any:
        loss, grads = inner(w, X)
        return w - grads, loss

    for _ in range(3):
        step(W)


def two_losses() -> None:
    step = jax.jit(lambda a, b: (gradient(a), jax.grad(other_loss)(b)))
    for _ in range(3):
        step(W, W)


def compiled_anew() -> None:
    for _ in range(3):
        jax.jit(gradient)(W)


def with_options() -> None:
    @partial(jax.jit, static_argnames=("rate",), out_shardings=(None, None), donate_argnames=("w",))
    def step(w: Any, rate: float) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(w, X)
        return w - rate * grads, loss

    w = W + 0
    for _ in range(3):
        w, _ = step(w, rate=2.0)


def ahead_of_time() -> None:
    step = jax.jit(gradient).lower(W).compile()
    for _ in range(3):
        step(W)


def in_a_loop() -> None:
    jax.jit(lambda w: jax.lax.fori_loop(0, 3, lambda _, w: w - gradient(w), w))(W)


def per_example() -> None:
    for _ in range(3):
        jax.vmap(jax.grad(loss_fn), (None, 0))(W, X[:, None])


def differentiated_again() -> None:
    for outer in (jax.jacfwd, jax.jacrev):
        jax.jit(outer(jax.grad(lambda v: (v**3).sum())))(jnp.ones(3))
    hessian = jax.hessian(lambda v: (v**3).sum())(jnp.ones(2))
    assert hessian.tolist() == [[6.0, 0.0], [0.0, 6.0]]


def only_evaluated() -> None:
    jax.jit(loss_fn)(W, X)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize(
    ("train", "gradients"),
    [
        (nested, 3),
        (two_losses, 6),
        (compiled_anew, 3),
        (with_options, 3),
        (ahead_of_time, 3),
        (in_a_loop, 3),
        (per_example, 3),
        (differentiated_again, 2),
        (only_evaluated, 0),
    ],
)
def test_every_gradient_is_reported_once(train: Callable[[], None], gradients: int, name: str, waits: bool) -> None:
    reported: list[tuple[Hashable, float]] = []
    patches = Patches()
    applied = AppliedPlan(recipe(name), lambda key, loss: reported.append((key, loss)), waits=waits)
    applied.install(patches)
    try:
        train()
        applied.settle()
    finally:
        patches.undo()
    assert len(reported) == gradients
