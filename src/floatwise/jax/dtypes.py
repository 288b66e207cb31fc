# SPDX-License-Identifier: Apache-2.0
"""Formats of the table as JAX dtypes, and which values of a tree a cast concerns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["is_floating", "jax_dtype", "to_dtype"]

# Formats of fewer bits are scaled by whoever made them; a plain cast would drop the scale.
_FEWEST_BITS = 16


def jax_dtype(name: str) -> Any:
    """Returns the dtype of a format's canonical name, such as `bfloat16` or `float8_e4m3fn`."""
    return jnp.dtype(getattr(jnp, name))


def is_floating(leaf: object) -> bool:
    """Returns whether a leaf is an array or NumPy scalar of 16, 32 or 64 floating-point bits.

    Integers, booleans, complex numbers, PRNG keys, float8 arrays, Python numbers (which promote nothing) and whatever
    is no array are not.
    """
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return False
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating)) and leaf.dtype.itemsize * 8 >= _FEWEST_BITS


def to_dtype(leaf: Any, dtype: Any) -> Any:
    """Returns a leaf in `dtype` when it is floating (see `is_floating`), else the leaf itself."""
    if not is_floating(leaf) or (leaf.dtype == dtype and not getattr(leaf, "weak_type", False)):
        return leaf
    return jax.lax.convert_element_type(leaf, dtype)
