# SPDX-License-Identifier: Apache-2.0
"""bfloat16 weights with the 16 trailing bits of the float32 weight beside them: exact, in four bytes in all.

The halves are those of `floatwise.torch.masters.split`: the upper one is the nearest bfloat16, of two equally near the
one farther from zero, and the lower one the signed number of float32's steps from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.jax.optax_parts import flattened, is_bfloat16, moved, need_params, optax, widened
from floatwise.jax.weights.bits import bfloat16_from_bits, float32_bits

__all__ = ["SplitState", "join_halves", "split_halves", "split_master"]


class SplitState(NamedTuple):
    """The state of `split_master`.

    Attributes:
      inner_state: The state of the optimizer inside, in float32.
      low: The lower halves of the weights, int16 in their shapes; of shape [] where the weight is not bfloat16.
    """

    inner_state: Any
    low: Any


def split_halves(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns float32 values as bfloat16 and int16 halves of the same shape, which `join_halves` makes whole again."""
    bits = float32_bits(jnp.where(jnp.isnan(values), jnp.float32(jnp.nan), values))
    low = (bits & jnp.uint32(0xFFFF)).astype(jnp.uint16)
    return bfloat16_from_bits(bits + jnp.uint32(0x8000)), jax.lax.bitcast_convert_type(low, jnp.int16)


def join_halves(high: jax.Array, low: jax.Array) -> jax.Array:
    """Returns the float32 values of bfloat16 and int16 halves.

    A zero has nothing below it, so a negative lower half beside one, left from before the weight was set to zero
    elsewhere, counts as zero.
    """
    upper = jax.lax.bitcast_convert_type(high, jnp.uint16).astype(jnp.uint32) << 16
    steps = jnp.where((high == 0) & (low < 0), jnp.int16(0), low).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(upper + jax.lax.bitcast_convert_type(steps, jnp.uint32), jnp.float32)


def split_master(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that updates bfloat16 weights as if they were float32, bit for bit.

    The optimizer inside sees float32 weights, gradients and states; the model goes on with bfloat16 weights. It takes
    two bytes a weight beside them, where a float32 copy takes four. Weights in other formats are updated as ever.

    Args:
      inner: The optimizer, whole: what comes after it would round again.

    Returns:
      An optimizer for `apply_updates`, Floatwise's or optax's; its `update` needs the parameters.
    """
    inside = optax.with_extra_args_support(inner)

    def init(params: Any) -> SplitState:
        low = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape if is_bfloat16(leaf) else (), jnp.int16), params)
        return SplitState(inside.init(widened(params)), low)

    def update(updates: Any, state: SplitState, params: Any = None, **extra: Any) -> tuple[Any, SplitState]:
        need_params(params, "split_master")
        leaves, structure = flattened(params)
        lows = structure.flatten_up_to(state.low)
        wide = [join_halves(p, low) if is_bfloat16(p) else p for p, low in zip(leaves, lows, strict=True)]
        steps, inner_state = inside.update(widened(updates), state.inner_state, structure.unflatten(wide), **extra)
        halves = [
            split_halves(master + step.astype(jnp.float32)) if is_bfloat16(weight) else (None, low)
            for weight, master, step, low in zip(leaves, wide, structure.flatten_up_to(steps), lows, strict=True)
        ]
        new = [
            step if high is None else moved(weight, high)
            for weight, step, (high, _) in zip(leaves, structure.flatten_up_to(steps), halves, strict=True)
        ]
        return structure.unflatten(new), SplitState(inner_state, structure.unflatten([low for _, low in halves]))

    return optax.GradientTransformationExtraArgs(init, update)
