# SPDX-License-Identifier: Apache-2.0
"""Adding updates to parameters without changing what these are stored in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from floatwise.jax.dtypes import is_floating

__all__ = ["apply_updates"]


def apply_updates(params: Any, updates: Any) -> Any:
    """Returns parameters plus updates, each in the format that the parameter is stored in.

    As `optax.apply_updates`, for trees with leaves of any kind: leaves without an update (None) stay. The sum is
    computed in float32. `equinox.apply_updates` hands out that sum itself, so that bfloat16 weights
    become float32 with their first update.

    Args:
      params: A tree of arrays and other leaves, such as an Equinox module.
      updates: A tree of the same structure, None where nothing changes.
    """

    def add(update: Any, param: Any) -> Any:
        if update is None or not is_floating(param):
            return param
        wide = param.dtype if param.dtype == jnp.float64 else jnp.float32
        return (param.astype(wide) + update.astype(wide)).astype(param.dtype)

    return jax.tree.map(add, updates, params, is_leaf=lambda leaf: leaf is None)
