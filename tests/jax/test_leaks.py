# SPDX-License-Identifier: Apache-2.0
"""Every way in which bfloat16 was seen to become float32 is found at its line, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax import linen, nnx

import floatwise as fw

X = jnp.ones((4, 8), jnp.bfloat16)
KEY = jax.random.key(0)

LEAKING: dict[str, Callable[[Any], Any]] = {
    "numpy scalar": lambda x: x * np.float32(0.5),
    "jax scalar": lambda x: x * jnp.float32(0.5),
    "np.sqrt": lambda x: x / np.sqrt(8),
    "numpy array": lambda x: x + np.ones(8),
    "jnp.ones": lambda x: x + jnp.ones(8),
    "normal": lambda x: x + jax.random.normal(KEY, x.shape),
    "linspace": lambda x: jnp.linspace(0, 1, 8) * x,
    "one_hot": lambda x: jax.nn.one_hot(jnp.arange(4), 4) @ x,
    "weights": lambda x: x @ jnp.ones((8, 8)),
    "einsum": lambda x: jnp.einsum("ab,bc->ac", x, jnp.ones((8, 8))),
    "where": lambda x: jnp.where(x > 0, x, jnp.float32(-1e9)),
    "concatenate": lambda x: jnp.concatenate([x, jnp.ones((4, 8))]),
    "maximum": lambda x: jnp.maximum(x, jnp.ones(8)),
    "float16": lambda x: x + jnp.ones((4, 8), jnp.float16),
    "scan": lambda x: jax.lax.scan(lambda c, t: (c, c * t), x, jnp.ones(4))[1],
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x * np.float32(1), lambda x: x.astype(jnp.float32), x),
    "jit": jax.jit(lambda x: x * np.float32(2)),
    "linen": lambda x: linen.Dense(4).init_with_output(KEY, x)[0],
    "equinox": lambda x: jax.vmap(eqx.nn.Linear(8, 4, key=KEY))(x),
}

TIGHT: dict[str, Callable[[Any], Any]] = {
    "python number": lambda x: x * 0.5 + 2,
    "jnp.sqrt": lambda x: x / jnp.sqrt(8),
    "array of a number": lambda x: x * jnp.array(0.5),
    "arange": lambda x: x + jnp.arange(8),  # strict promotion refuses this one and the next
    "bernoulli": lambda x: x * jax.random.bernoulli(KEY, 0.5, x.shape),
    "where": lambda x: jnp.where(x > 0, x, -1e9),
    "mean": jnp.mean,
    "variance": jnp.var,
    "softmax": jax.nn.softmax,
    "logsumexp": jax.nn.logsumexp,
    "written out": lambda x: x.astype(jnp.float32) * jnp.ones(8),
    "preferred": lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.float32),
    "cross entropy": lambda x: optax.softmax_cross_entropy_with_integer_labels(x, jnp.zeros(4, int)).mean(),
    "linen": lambda x: linen.Dense(4, dtype=jnp.bfloat16).init_with_output(KEY, x)[0],
}


def is_refused_by_strict_promotion(fn: Callable[[Any], Any]) -> bool:
    with jax.numpy_dtype_promotion("strict"):
        try:
            jax.make_jaxpr(fn)(X)
        except ValueError:
            return True
    return False


def source_line(name: str) -> str:
    with open(__file__, encoding="utf-8") as file:
        number = next(i for i, line in enumerate(file, 1) if line.startswith(f'    "{name}": '))
    return f"{__file__}:{number}"


@pytest.mark.parametrize("name", LEAKING)
def test_leaks_are_found_at_their_line(name: str) -> None:
    assert is_refused_by_strict_promotion(LEAKING[name])
    found = fw.jax.leaks(LEAKING[name], X)
    assert {leak.where for leak in found} == {source_line(name)}
    assert all((leak.before, leak.after) in {("bfloat16", "float32"), ("float16", "float32")} for leak in found)
    assert all(leak.shape is not None for leak in found)


@pytest.mark.parametrize("name", TIGHT)
def test_nothing_else_is_called_a_leak(name: str) -> None:
    assert fw.jax.leaks(TIGHT[name], X) == ()


@pytest.mark.parametrize("name", ["arange", "bernoulli"])
def test_strict_promotion_raises_false_alarms(name: str) -> None:
    assert is_refused_by_strict_promotion(TIGHT[name])
    assert TIGHT[name](X).dtype == jnp.bfloat16


def test_all_leaks_are_found_among_much_that_is_none() -> None:
    def layer(x: jax.Array) -> jax.Array:
        h = jax.nn.softmax(x + jnp.arange(8)) * jnp.var(x) + jnp.std(x) - jax.nn.logsumexp(x)
        h = h * np.float32(0.5)
        h = jax.nn.gelu(h.astype(jnp.bfloat16)) + jnp.mean(x, axis=-1, keepdims=True)
        h = jnp.where(h > 0, h, jnp.float32(0))
        h = jax.nn.standardize(h.astype(jnp.bfloat16)) * jnp.cumsum(x, axis=1)
        return jnp.where(h > 0, h, jnp.ones(8))

    found = fw.jax.leaks(layer, X)
    assert [leak.line for leak in found] == [
        "h = h * np.float32(0.5)",
        "h = jnp.where(h > 0, h, jnp.float32(0))",
        "return jnp.where(h > 0, h, jnp.ones(8))",
    ]


def test_nnx_without_a_dtype_leaks_and_with_one_does_not() -> None:
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    assert model(X).dtype == jnp.float32
    graph, state = nnx.split(model)
    assert len(fw.jax.leaks(lambda state, x: nnx.merge(graph, state)(x), state, X)) >= 1
    fw.jax.set_nnx_dtypes(model, "c=bf16")
    graph, state = nnx.split(model)
    assert fw.jax.leaks(lambda state, x: nnx.merge(graph, state)(x), state, X) == ()
