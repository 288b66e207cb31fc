# SPDX-License-Identifier: Apache-2.0
"""bfloat16 weights whose updates are rounded by chance: no state beside them, and right on average."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.jax.optax_parts import flattened, is_bfloat16, moved, need_params, optax, widened
from floatwise.jax.weights.bits import stochastic_bfloat16

__all__ = ["StochasticState", "stochastic_rounding"]


class StochasticState(NamedTuple):
    """The state of `stochastic_rounding`.

    Attributes:
      inner_state: The state of the optimizer inside, in float32.
      updates: Updates so far, int32 of shape []; the random bits of an update depend on it and the key alone.
    """

    inner_state: Any
    updates: jax.Array


def stochastic_rounding(
    inner: optax.GradientTransformation, key: jax.Array | int = 0
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that adds its updates to bfloat16 weights with stochastic rounding.

    An update that is 1/10 of a step of bfloat16 moves the weight by a whole step in one of ten cases, where rounding to
    nearest never moves it: `optax.apply_updates` on a bfloat16 weight of 1 drops an update of 0.001. The optimizer
    inside computes in float32 and keeps its state so. Weights in other formats are updated as ever.

    Source: Gupta et al. 2015, arXiv 1502.02551; Zamirai et al. 2020, arXiv 2010.06192.

    Args:
      inner: The optimizer, whole: what comes after it would round again.
      key: A PRNG key or a seed. Replicas need the same one to stay equal. Default: 0.

    Returns:
      An optimizer for `apply_updates`, Floatwise's or optax's; its `update` needs the parameters.
    """
    inside = optax.with_extra_args_support(inner)
    base = jax.random.key(key) if isinstance(key, int) else key

    def init(params: Any) -> StochasticState:
        return StochasticState(inside.init(widened(params)), jnp.int32(0))

    def update(updates: Any, state: StochasticState, params: Any = None, **extra: Any) -> tuple[Any, StochasticState]:
        need_params(params, "stochastic_rounding")
        steps, inner_state = inside.update(widened(updates), state.inner_state, widened(params), **extra)
        leaves, structure = flattened(params)
        keys = jax.random.split(jax.random.fold_in(base, state.updates), max(len(leaves), 1))

        def rounded(weight: Any, step: Any, own: Any) -> Any:
            if not is_bfloat16(weight):
                return step
            return moved(weight, stochastic_bfloat16(weight.astype(jnp.float32) + step, own))

        new = map(rounded, leaves, structure.flatten_up_to(steps), keys)
        return structure.unflatten(new), StochasticState(inner_state, state.updates + 1)

    return optax.GradientTransformationExtraArgs(init, update)
