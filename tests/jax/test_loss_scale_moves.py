# SPDX-License-Identifier: Apache-2.0
"""The JAX loss scale makes the moves of PyTorch's runtime under the same plan, whatever happens."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatwise.jax import LossScale
from floatwise.plan import LossScale as Settings
from floatwise.torch import LossScaler

PLANS = [
    Settings(growth_interval=3),
    Settings(growth_interval=2, hysteresis=2, floor=4.0, ceiling=2.0**18),
    Settings(growth_interval=2, growth="fixed", ceiling=2.0**17, hysteresis=3),
    Settings(growth_interval=3, initial_scale=2.0**10, headroom_bits=8, window_log2=(2, 12)),
    Settings(growth_interval=1, growth_factor=4.0, backoff_factor=0.25, initial_scale=1000.0),
    Settings(growth_interval=2, floor=2.0**12, ceiling=2.0**17),
    Settings(mode="static", initial_scale=128.0),
]

#: An update: whether the gradients are finite, and the largest of them as a power of two.
UPDATES = st.lists(st.tuples(st.integers(0, 3), st.integers(-40, 6)), min_size=1, max_size=40)


@partial(jax.jit, static_argnums=0)
def moves(plan: Settings, finite: jax.Array, largest: jax.Array) -> tuple[jax.Array, LossScale]:
    def update(scale: LossScale, step: tuple[jax.Array, jax.Array]) -> tuple[LossScale, jax.Array]:
        moved = scale.update(*step)
        return moved, moved.value

    end, values = jax.lax.scan(update, LossScale.from_settings(plan), (finite, largest))
    return values, end


def torch_moves(plan: Settings, finite: np.ndarray, largest: np.ndarray) -> tuple[list[float], LossScaler]:
    scaler = LossScaler.from_plan(plan, "cpu")
    scaler._alarm.after = None
    scaler.scale(torch.ones(()))  # makes its state
    values = []
    for is_finite, magnitude in zip(finite.tolist(), largest.tolist(), strict=True):
        scaled = torch.tensor(magnitude * scaler.get_scale() if is_finite else float("inf"))
        scaler.update_from(torch.tensor(0.0 if is_finite else 1.0), scaled)
        values.append(scaler.get_scale())
    return values, scaler


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.mode}-{plan.growth}-{plan.initial_scale:g}")
@given(UPDATES)
@settings(max_examples=8)
def test_moves_are_those_of_the_torch_scaler(plan: Settings, updates: list[tuple[int, int]]) -> None:
    # The bits after the first keep magnitudes off the powers of two where float32 and float64 would decide unlike.
    padded = [(chance > 0, 1.37 * 2.0**exponent) for chance, exponent in updates] + [(True, 0.11)] * 40
    finite = np.array([is_finite for is_finite, _ in padded[:40]])
    largest = np.array([magnitude for _, magnitude in padded[:40]], np.float32)
    values, end = moves(plan, finite, largest)
    expected, scaler = torch_moves(plan, finite, largest)
    assert values.tolist() == expected
    report = end.report()
    assert (report.skipped_steps, report.consecutive_skips) == (scaler.skipped_steps, scaler.consecutive_skips)


def test_scales_move_at_all() -> None:
    finite = jnp.array([True] * 4 + [False] * 3 + [True] * 20)
    values, _ = moves(PLANS[0], finite, jnp.full(27, 2.0**-30))
    assert len(set(values.tolist())) > 3
