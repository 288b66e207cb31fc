# SPDX-License-Identifier: Apache-2.0
"""16-bit weights with a float32 copy of each in the optimizer's state."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from floatwise.jax.optax_parts import flattened, moved, need_params, optax, widened

__all__ = ["MasterState", "float32_master"]


class MasterState(NamedTuple):
    """The state of `float32_master`.

    Attributes:
      inner_state: The state of the optimizer inside, in float32.
      master: The float32 weights; of shape [] where the weight itself has 32 bits.
    """

    inner_state: Any
    master: Any


def float32_master(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that updates a float32 copy of float16 or bfloat16 weights and rounds the weights from it.

    Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.1. For bfloat16 `split_master` does the same with
    half as much beside the weights.

    Args:
      inner: The optimizer, whole: what comes after it would round again.

    Returns:
      An optimizer for `apply_updates`, Floatwise's or optax's; its `update` needs the parameters. Weights
      that are changed elsewhere, as by loading a checkpoint, need a new `init`.
    """
    inside = optax.with_extra_args_support(inner)

    def init(params: Any) -> MasterState:
        master = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if _is_stored(leaf) else jnp.float32(0), params)
        return MasterState(inside.init(widened(params, _is_stored)), master)

    def update(updates: Any, state: MasterState, params: Any = None, **extra: Any) -> tuple[Any, MasterState]:
        need_params(params, "float32_master")
        leaves, structure = flattened(params)
        masters = structure.flatten_up_to(state.master)
        wide = [master if _is_stored(leaf) else leaf for leaf, master in zip(leaves, masters, strict=True)]
        steps, inner_state = inside.update(
            widened(updates, _is_stored), state.inner_state, structure.unflatten(wide), **extra
        )
        moves = structure.flatten_up_to(steps)
        kept = [
            master + step.astype(jnp.float32) if _is_stored(leaf) else master
            for leaf, master, step in zip(leaves, masters, moves, strict=True)
        ]
        new = [
            moved(leaf, master.astype(leaf.dtype)) if _is_stored(leaf) else step
            for leaf, master, step in zip(leaves, kept, moves, strict=True)
        ]
        return structure.unflatten(new), MasterState(inner_state, structure.unflatten(kept))

    return optax.GradientTransformationExtraArgs(init, update)


def _is_stored(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) in (jnp.bfloat16, jnp.float16)
