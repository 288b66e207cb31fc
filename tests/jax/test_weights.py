# SPDX-License-Identifier: Apache-2.0
"""Updates of 16-bit weights that rounding to nearest drops are kept: by chance, by Kahan sums, by trailing bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import floatwise as fw
from floatwise.errors import BadInputError
from floatwise.jax.weights import join_halves, split_halves
from floatwise.jax.weights.bits import nearest_bfloat16, stochastic_bfloat16

BF16 = jnp.bfloat16
#: Ones of bfloat16, whose step upward is 2**-7, so that an update of 0.001 is an eighth of a step.
ONES = jnp.ones(512, BF16)
UP = jnp.full(512, -1e-3)  # a gradient that SGD with learning rate 1 turns into +0.001

WRAPPERS = {
    "float32": fw.jax.float32_master,
    "split": fw.jax.split_master,
    "kahan": fw.jax.kahan,
    "stochastic": fw.jax.stochastic_rounding,
}


def train(optimizer: Any, params: Any, grads: Any, steps: int) -> tuple[Any, Any]:
    def step(carry: Any, _: Any) -> tuple[Any, None]:
        params, state = carry
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, state), _ = jax.jit(lambda p, s: jax.lax.scan(step, (p, s), None, length=steps))(
        params, optimizer.init(params)
    )
    return params, state


def test_optax_drops_small_updates_of_bfloat16_weights() -> None:
    params, _ = train(optax.sgd(1.0), ONES, UP.astype(BF16), 1000)
    assert (params == 1).all()


@pytest.mark.parametrize("master", WRAPPERS)
def test_a_thousand_small_updates_arrive(master: str) -> None:
    params, _ = train(WRAPPERS[master](optax.sgd(1.0)), ONES, UP, 1000)
    assert params.dtype == BF16
    assert float(params.astype(jnp.float32).mean()) == pytest.approx(2.0, abs=0.02)


def test_kahan_is_within_its_bound() -> None:
    params, state = train(fw.jax.kahan(optax.sgd(1.0)), ONES, UP, 1000)
    reached = params.astype(jnp.float32) + state.lost.astype(jnp.float32)
    assert state.lost.dtype == BF16
    # Each update loses at most 2**-18 of a weight below 2.
    assert float(jnp.abs(reached - 2.0).max()) < 1000 * 2.0**-17
    assert float(jnp.abs(state.lost.astype(jnp.float32)).max()) <= 2.0**-7 + 2.0**-15


def test_kahan_in_jit_is_kahan_outside() -> None:
    # XLA may drop a cast to bfloat16 and back, and with it the error that is to be remembered.
    optimizer = fw.jax.kahan(optax.sgd(1.0))
    jitted = train(optimizer, ONES, UP, 5)
    with jax.disable_jit():
        eager = train(optimizer, ONES, UP, 5)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), jitted, eager))


@given(st.floats(2.0**-20, 2.0**20), st.integers(0, 2**16))
def test_stochastic_rounding_is_unbiased(value: float, seed: int) -> None:
    wide = jnp.full(4096, value, jnp.float32)
    rounded = np.asarray(stochastic_bfloat16(wide, jax.random.key(seed)).astype(jnp.float32), np.float64)
    step = 2.0 ** (np.floor(np.log2(value)) - 7)
    assert len(np.unique(rounded)) <= 2
    assert np.abs(rounded - float(wide[0])).max() < step
    # Five standard errors of the mean of 4,096 draws between neighbours.
    assert abs(rounded.mean() - float(wide[0])) < 5 * step / 2 / 64


def test_stochastic_rounding_depends_on_key_and_count_alone() -> None:
    optimizer = fw.jax.stochastic_rounding(optax.sgd(1.0), key=7)
    first, second = train(optimizer, ONES, UP, 3), train(optimizer, ONES, UP, 3)
    assert (first[0] == second[0]).all()
    assert int(first[1].updates) == 3
    assert not (train(fw.jax.stochastic_rounding(optax.sgd(1.0), key=8), ONES, UP, 3)[0] == first[0]).all()


def test_what_cannot_be_rounded_stays() -> None:
    values = jnp.array([jnp.inf, -jnp.inf, jnp.nan, 0.0, -0.0, 1.5])
    for got in (stochastic_bfloat16(values, jax.random.key(0)), nearest_bfloat16(values), split_halves(values)[0]):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(values))
        assert np.signbit(np.asarray(got, np.float32)[4])


FLOAT32 = arrays(np.float32, 64, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(FLOAT32)
def test_rounding_by_bits_is_the_cast(values: np.ndarray) -> None:
    np.testing.assert_array_equal(
        np.asarray(nearest_bfloat16(jnp.asarray(values)).astype(jnp.float32)),
        np.asarray(jnp.asarray(values).astype(BF16).astype(jnp.float32)),
    )


@given(FLOAT32)
def test_halves_make_the_whole(values: np.ndarray) -> None:
    high, low = split_halves(jnp.asarray(values))
    assert (high.dtype, low.dtype) == (BF16, jnp.int16)
    np.testing.assert_array_equal(np.asarray(join_halves(high, low)).view(np.uint32), values.view(np.uint32))


def test_a_weight_set_to_zero_elsewhere_is_zero() -> None:
    assert float(join_halves(jnp.zeros(1, BF16), jnp.full(1, -5, jnp.int16))[0]) == 0


WEIGHTS = arrays(np.float32, 32, elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False))


@given(WEIGHTS, WEIGHTS)
def test_split_weights_are_float32_weights_bit_for_bit(weights: np.ndarray, grads: np.ndarray) -> None:
    high, low = split_halves(jnp.asarray(weights))
    optimizer = fw.jax.split_master(optax.sgd(0.5))
    state = optimizer.init(high)._replace(low=low)
    updates, state = optimizer.update(jnp.asarray(grads), state, high)
    got = join_halves(optax.apply_updates(high, updates), state.low)
    steps, _ = optax.sgd(0.5).update(jnp.asarray(grads), optax.sgd(0.5).init(weights), weights)
    expected = np.asarray(optax.apply_updates(jnp.asarray(weights), steps))
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.parametrize("master", ["split", "float32"])
def test_adam_on_exact_masters_is_adam_in_float32(master: str) -> None:
    params = {"w": jnp.linspace(0.5, 2, 64).astype(BF16), "norm": jnp.ones(3)}
    grads = jax.tree.map(lambda leaf: jnp.sin(7 * leaf.astype(jnp.float32)), params)
    wide, _ = train(optax.adamw(1e-4), jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), grads, 50)
    got, state = train(WRAPPERS[master](optax.adamw(1e-4)), params, grads, 50)
    kept = join_halves(got["w"], state.low["w"]) if master == "split" else state.master["w"]
    np.testing.assert_array_equal(np.asarray(kept), np.asarray(wide["w"]))
    np.testing.assert_array_equal(np.asarray(got["norm"]), np.asarray(wide["norm"]))
    assert got["norm"].dtype == jnp.float32


def test_optax_keeps_16_bit_states_and_makes_nan_of_zero_gradients() -> None:
    weights, zero = jnp.ones(3, jnp.float16), jnp.zeros(3, jnp.float16)
    stock = optax.adam(1e-3)
    updates, _ = stock.update(zero, stock.init(weights), weights)
    assert jnp.isnan(updates).all()  # google-deepmind/optax#1754: eps is 0 in float16
    optimizer = fw.jax.float32_master(stock)
    state = optimizer.init(weights)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state)} == {"float32", "int32"}
    updates, _ = optimizer.update(zero, state, weights)
    assert (optax.apply_updates(weights, updates) == 1).all()


@pytest.mark.parametrize("master", WRAPPERS)
def test_states_of_bfloat16_weights_are_float32(master: str) -> None:
    stock = optax.adam(1e-3).init(ONES)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(stock)} == {"bfloat16", "int32"}
    inner = WRAPPERS[master](optax.adam(1e-3)).init(ONES).inner_state
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(inner)} == {"float32", "int32"}


@pytest.mark.parametrize("master", WRAPPERS)
def test_parameters_are_needed(master: str) -> None:
    optimizer = WRAPPERS[master](optax.sgd(1.0))
    with pytest.raises(BadInputError, match=r"call optimizer.update\(grads, opt_state, params\)"):
        optimizer.update(UP, optimizer.init(ONES))


@pytest.mark.parametrize(
    ("recipe", "master", "state"),
    [
        ("bf16-master", "split", "SplitState"),
        ("bf16-master", "kahan", "KahanState"),
        ("bf16-master", "stochastic", "StochasticState"),
        ("fp16-master", "float32", "SkipState"),
        ("fp16-mixed", "none", "SkipState"),
        ("bf16-mixed", "none", "tuple"),
    ],
)
def test_the_plan_chooses(recipe: str, master: Any, state: str) -> None:
    plan = fw.plan.recipe(recipe, weights=fw.plan.Weights(master=master))
    assert type(fw.jax.plan_optimizer(optax.sgd(1.0), plan).init(ONES)).__name__ == state
