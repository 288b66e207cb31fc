# SPDX-License-Identifier: Apache-2.0
"""Optax, when it is there, and what its wrappers here share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from floatwise.errors import BadInputError, MissingPackageError

try:
    import optax  # type: ignore[import-untyped]
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingPackageError(
        "this needs optax, which is not installed in this environment: pip install optax"
    ) from error

__all__ = ["flattened", "is_bfloat16", "moved", "need_params", "optax", "widened"]


def need_params(params: Any, name: str) -> None:
    """Raises BadInputError unless `update` was given the parameters."""
    if params is None:
        raise BadInputError(f"got no parameters in {name}'s update; call optimizer.update(grads, opt_state, params)")


def is_bfloat16(leaf: Any) -> bool:
    """Returns whether a leaf is a bfloat16 array."""
    return bool(getattr(leaf, "dtype", None) == jnp.bfloat16)


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves of a tree and its structure (`jax.tree_util.PyTreeDef`)."""
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def widened(tree: Any, is_stored: Callable[[Any], bool] = is_bfloat16) -> Any:
    """Returns a tree with the leaves that are stored in 16 bits as float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_stored(leaf) else leaf, tree)


def moved(before: jax.Array, after: jax.Array) -> jax.Array:
    """Returns the float32 update that takes one 16-bit weight to another in `apply_updates`.

    The sum there is float32 and then rounded to the weight's format. The difference is exact, or off by less than
    half a step of `after`, which that rounding removes: no weight of 16 bits is lost (tests/jax/weights).
    """
    return after.astype(jnp.float32) - before.astype(jnp.float32)
