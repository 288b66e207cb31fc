# SPDX-License-Identifier: Apache-2.0
"""An optax optimizer that leaves weights and state alone when a gradient is not finite, and counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.errors import BadInputError
from floatwise.jax.finite import AxisName, agreed, all_finite, select
from floatwise.jax.optax_parts import optax
from floatwise.jax.scale_report import first_replica

__all__ = ["SkipReport", "SkipState", "skip_if_not_finite", "skip_report"]


class SkipState(NamedTuple):
    """The state of `skip_if_not_finite`; the counts are int32 of shape [].

    Attributes:
      inner_state: The state of the optimizer inside.
      updates: Calls so far.
      skipped_steps: How many of them were skipped.
      consecutive_skips: How many of the last in a row were.
    """

    inner_state: Any
    updates: jax.Array
    skipped_steps: jax.Array
    consecutive_skips: jax.Array


@dataclass(frozen=True, kw_only=True)
class SkipReport:
    """The counts of `skip_if_not_finite` as Python numbers.

    Attributes:
      updates: Calls so far.
      skipped_steps: How many of them were skipped.
      consecutive_skips: How many of the last in a row were.
    """

    updates: int
    skipped_steps: int
    consecutive_skips: int


def skip_if_not_finite(
    inner: optax.GradientTransformation, *, axis_name: AxisName = None
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that does nothing in a step whose gradients are not all finite.

    Weights and state stay as they are, to the bit. `optax.apply_if_finite` does this too, but hands the NaN on after
    `max_consecutive_errors`; here it never is. Put it outermost, so that nothing of the step is counted.

    Args:
      inner: The optimizer.
      axis_name: Mapped axes over which the devices agree. Not needed when gradients are averaged before.

    Returns:
      An optimizer whose `update` also takes `finite=`, a boolean of shape [], in place of looking at the gradients.
    """
    inside = optax.with_extra_args_support(inner)

    def init(params: Any) -> SkipState:
        return SkipState(inside.init(params), jnp.int32(0), jnp.int32(0), jnp.int32(0))

    def update(
        updates: Any, state: SkipState, params: Any = None, *, finite: jax.Array | None = None, **extra: Any
    ) -> tuple[Any, SkipState]:
        good = all_finite(updates, axis_name) if finite is None else agreed(finite, axis_name)
        stepped, inner_state = inside.update(updates, state.inner_state, params, **extra)
        # Adding -0 leaves every number as it is; adding 0 makes a 0 of -0.
        still = jax.tree.map(lambda leaf: jnp.full_like(leaf, -0.0), stepped)
        return select(good, stepped, still), SkipState(
            select(good, inner_state, state.inner_state),
            state.updates + 1,
            state.skipped_steps + (~good).astype(jnp.int32),
            jnp.where(good, 0, state.consecutive_skips + 1),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def skip_report(opt_state: Any) -> SkipReport:
    """Returns the counts in an optimizer's state, wherever in it they stand. Waits for the device.

    Raises:
      BadInputError: No `skip_if_not_finite` is part of the optimizer.
    """
    states = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, SkipState))
    found = [state for state in states if isinstance(state, SkipState)]
    if not found:
        raise BadInputError("got an optimizer state without skip_if_not_finite; wrap the optimizer with it")
    counts = (found[0].updates, found[0].skipped_steps, found[0].consecutive_skips)
    updates, skipped, consecutive = (int(first_replica(count)) for count in counts)
    return SkipReport(updates=updates, skipped_steps=skipped, consecutive_skips=consecutive)
