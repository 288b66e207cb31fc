# SPDX-License-Identifier: Apache-2.0
"""Rounding float32 to bfloat16 by its bits, which no compiler pass takes away.

XLA may drop a cast to bfloat16 and back (`xla_allow_excess_precision`, on by default; on GPUs it does,
openxla/xla#41605), and with it the rounding error that Kahan summation lives from. Integer operations stay.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["bfloat16_from_bits", "float32_bits", "nearest_bfloat16", "stochastic_bfloat16"]


def float32_bits(values: jax.Array) -> jax.Array:
    """Returns float32 values as uint32 patterns of the same shape."""
    return jax.lax.bitcast_convert_type(values, jnp.uint32)


def bfloat16_from_bits(patterns: jax.Array) -> jax.Array:
    """Returns the bfloat16 values whose patterns are the upper 16 bits of uint32 `patterns`."""
    return jax.lax.bitcast_convert_type((patterns >> 16).astype(jnp.uint16), jnp.bfloat16)


def nearest_bfloat16(values: jax.Array) -> jax.Array:
    """Returns float32 values rounded to the nearest bfloat16, ties to even, as a cast rounds them."""
    bits = float32_bits(values)
    rounded = bfloat16_from_bits(bits + jnp.uint32(0x7FFF) + ((bits >> 16) & jnp.uint32(1)))
    return jnp.where(jnp.isnan(values), jnp.bfloat16(jnp.nan), rounded)


def stochastic_bfloat16(values: jax.Array, key: jax.Array) -> jax.Array:
    """Returns float32 values rounded up or down to bfloat16 by chance, so that the mean is the value itself.

    What bfloat16 represents stays as it is; so do infinities, and NaN stays NaN.

    Args:
      values: float32 of any shape.
      key: A PRNG key; each value takes 16 of its bits.
    """
    bits = float32_bits(values)
    chance = jax.random.bits(key, values.shape, jnp.uint16).astype(jnp.uint32)
    rounded = bfloat16_from_bits(bits + chance)
    return jnp.where(jnp.isfinite(values), rounded, nearest_bfloat16(values))
