# SPDX-License-Identifier: Apache-2.0
"""Whether all values of a tree are finite, how large they are, and choosing between two trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.jax.dtypes import is_floating

__all__ = ["AxisName", "agreed", "agreed_largest", "all_finite", "largest_magnitude", "select"]

AxisName = str | Sequence[str] | None
"""The mapped axes of `pmap`, `vmap` or `shard_map` over which a finding is agreed; None where there are none."""


def all_finite(tree: Any, axis_name: AxisName = None) -> jax.Array:
    """Returns whether every floating value of a tree is finite: a boolean of shape [].

    Args:
      tree: Arrays of any shapes; what is not floating point counts as finite.
      axis_name: Axes over which it must be so on every device, so that all skip a step or none does.
    """
    found = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if is_floating(leaf)]
    return agreed(jnp.all(jnp.stack(found)) if found else jnp.bool_(True), axis_name)


def largest_magnitude(tree: Any, axis_name: AxisName = None) -> jax.Array:
    """Returns the largest magnitude of the floating values of a tree, float32 of shape []; 0 when there are none.

    Args:
      tree: Arrays of any shapes.
      axis_name: Axes over which the largest is taken.
    """
    found = [
        jnp.max(jnp.abs(leaf), initial=0).astype(jnp.float32) for leaf in jax.tree.leaves(tree) if is_floating(leaf)
    ]
    return agreed_largest(jnp.max(jnp.stack(found)) if found else jnp.float32(0), axis_name)


def select(condition: Any, when_true: Any, when_false: Any) -> Any:
    """Returns `when_true` or `when_false`, trees of one structure, by a boolean of shape [], without control flow.

    Leaves that are no arrays, such as the activation functions in Equinox modules, are those of `when_true`.
    """

    def choose(left: Any, right: Any) -> Any:
        if not hasattr(left, "dtype"):
            return left
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            return jax.lax.select(jnp.broadcast_to(condition, left.shape), left, right)
        return jnp.where(condition, left, right)

    return jax.tree.map(choose, when_true, when_false)


def agreed(finite: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns whether `finite` holds on every device along the axes."""
    if axis_name is None:
        return finite
    least: jax.Array = jax.lax.pmin(finite.astype(jnp.int32), _axes(axis_name))  # type: ignore[no-untyped-call]
    return least > 0


def agreed_largest(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """Returns the largest of `value` along the axes."""
    if axis_name is None:
        return value
    largest: jax.Array = jax.lax.pmax(value, _axes(axis_name))  # type: ignore[no-untyped-call]
    return largest


def _axes(axis_name: str | Sequence[str]) -> str | tuple[str, ...]:
    return axis_name if isinstance(axis_name, str) else tuple(axis_name)
