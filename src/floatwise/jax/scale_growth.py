# SPDX-License-Identifier: Apache-2.0
"""When a loss scale may grow, computed on the device: `floatwise.torch.scaling.growth` says why, and for PyTorch, how.

The two agree move for move (tests/jax/test_loss_scale_moves.py). Here the state is a tree of scalars, so that growth is
decided inside `jit`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["ScaleGrowth"]

# The largest finite float16 (IEEE 754-2019, table 3.5: binary16).
_FLOAT16_MAX = 65504.0

# As in floatwise.torch.scaling.growth: intervals an overflow is remembered at most, and bits by which gradients of
# activations may exceed those of weights.
_LONGEST_HOLD = 64
_LARGEST_GAP_BITS = 12


class ScaleGrowth(NamedTuple):
    """What the gradients have shown; every field is a float32 of shape [].

    Attributes:
      peak: The largest magnitude of an unscaled gradient; the past counts half as much after each growth interval.
      age: Updates without overflow since the scale grew, or since the beginning.
      hold: For how many more updates the last overflow is remembered.
      overflow_scale: The scale it happened at; infinite when none is remembered.
      overflow_peak: The peak then; 0 while it is not known.
    """

    peak: jax.Array
    age: jax.Array
    hold: jax.Array
    overflow_scale: jax.Array
    overflow_peak: jax.Array

    @classmethod
    def start(cls, safe_scale: float | None) -> ScaleGrowth:
        """Returns the state of the beginning; `safe_scale` is the largest scale known to overflow nowhere, if any."""
        zero = jnp.float32(0)
        if safe_scale is None:
            return cls(zero, zero, zero, jnp.float32(math.inf), zero)
        return cls(zero, zero, jnp.float32(math.inf), jnp.float32(2 * safe_scale), zero)

    def note(
        self,
        before: jax.Array,
        after: jax.Array,
        skipped: jax.Array,
        largest: jax.Array,
        loss_was_bad: jax.Array,
        interval: int,
    ) -> ScaleGrowth:
        """Returns the state after an update.

        Args:
          before: The scale until then.
          after: The scale from then on.
          skipped: Whether the step was skipped.
          largest: The largest magnitude of an unscaled gradient; anything when `skipped`.
          loss_was_bad: Whether the loss was not finite itself.
          interval: The growth interval, updates.
        """
        hold = self.hold - 1
        age = self.age + jnp.where(skipped, 0.0, 1.0)
        peak = self._peak_with(jnp.where(skipped, 0.0, largest), interval)
        remembered = skipped & ~loss_was_bad
        longer = interval * jnp.clip(interval / jnp.maximum(age, 1.0), 1.0, _LONGEST_HOLD)
        over = ~remembered & (hold <= 0)
        overflow_scale = jnp.where(remembered, before, jnp.where(over, math.inf, self.overflow_scale))
        overflow_peak = jnp.where(remembered, peak, self.overflow_peak)
        return ScaleGrowth(
            peak=peak,
            age=jnp.where(after > before, 0.0, age),
            hold=jnp.where(remembered, longer, hold),
            overflow_scale=overflow_scale,
            overflow_peak=jnp.where(overflow_peak == 0, peak, overflow_peak),
        )

    def allows(
        self, scale: jax.Array, factor: float, interval: int, headroom_bits: int, largest: jax.Array
    ) -> jax.Array:
        """Returns whether the scale may grow in the update that is not noted yet: a boolean of shape [].

        Args:
          scale: The scale until then.
          factor: The growth factor.
          interval: The growth interval, updates.
          headroom_bits: Powers of two the largest gradient stays below float16's largest value after growth.
          largest: The largest magnitude of an unscaled gradient.
        """
        grown = scale * factor
        peak = self._peak_with(jnp.where(jnp.isfinite(largest), largest, 0.0), interval)
        reached = grown * peak
        has_room = reached <= _FLOAT16_MAX * 2.0**-headroom_bits
        tiny = jnp.isfinite(self.hold) & (reached > 0) & (reached < _FLOAT16_MAX * 2.0**-_LARGEST_GAP_BITS)
        known = (self.overflow_peak > 0) & (peak > 0)
        shrunk = jnp.where(known, self.overflow_peak / jnp.where(peak > 0, peak, 1.0), 1.0)
        below = grown <= self.overflow_scale * shrunk / math.sqrt(factor)
        return has_room & ((self.hold <= 1) | tiny | below)

    def _peak_with(self, magnitude: jax.Array, interval: int) -> jax.Array:
        return jnp.maximum(self.peak * math.pow(0.5, 1 / interval), magnitude)
