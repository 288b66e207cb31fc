# SPDX-License-Identifier: Apache-2.0
"""bfloat16 weights that remember what their last rounding has lost, in a bfloat16 beside each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.jax.optax_parts import flattened, is_bfloat16, moved, need_params, optax, widened
from floatwise.jax.weights.bits import nearest_bfloat16

__all__ = ["KahanState", "kahan"]


class KahanState(NamedTuple):
    """The state of `kahan`.

    Attributes:
      inner_state: The state of the optimizer inside, in float32.
      lost: What the weights lack, bfloat16 in their shapes; of shape [] where the weight is not bfloat16.
    """

    inner_state: Any
    lost: Any


def kahan(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that adds its updates to bfloat16 weights with Kahan summation.

    What rounding takes from a weight is added to the next update, so that small updates arrive once they have summed up
    to a step of bfloat16. What is lost for good in an update is the rounding of that remainder to bfloat16: at most
    2**-18 of the weight. The optimizer inside computes in float32. Weights in other formats are updated as ever.

    Source: Kahan 1965, CACM 8(1):40; for weights Zamirai et al. 2020, arXiv 2010.06192.

    Args:
      inner: The optimizer, whole: what comes after it would round again.

    Returns:
      An optimizer for `apply_updates`, Floatwise's or optax's; its `update` needs the parameters.
    """
    inside = optax.with_extra_args_support(inner)

    def init(params: Any) -> KahanState:
        lost = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape if is_bfloat16(leaf) else (), jnp.bfloat16), params)
        return KahanState(inside.init(widened(params)), lost)

    def update(updates: Any, state: KahanState, params: Any = None, **extra: Any) -> tuple[Any, KahanState]:
        need_params(params, "kahan")
        steps, inner_state = inside.update(widened(updates), state.inner_state, widened(params), **extra)
        leaves, structure = flattened(params)
        pairs = [
            _add(*of_leaf)
            for of_leaf in zip(leaves, structure.flatten_up_to(steps), structure.flatten_up_to(state.lost), strict=True)
        ]
        new = structure.unflatten([step for step, _ in pairs])
        return new, KahanState(inner_state, structure.unflatten([lost for _, lost in pairs]))

    return optax.GradientTransformationExtraArgs(init, update)


def _add(weight: Any, step: Any, lost: Any) -> tuple[Any, Any]:
    if not is_bfloat16(weight):
        return step, lost
    wanted = step.astype(jnp.float32) + lost.astype(jnp.float32)
    step = moved(weight, nearest_bfloat16(weight.astype(jnp.float32) + wanted))
    return step, nearest_bfloat16(wanted - step)
