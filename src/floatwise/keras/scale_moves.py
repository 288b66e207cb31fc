# SPDX-License-Identifier: Apache-2.0
"""How the loss scale moves, in `keras.ops`: the rules of PyTorch's runtime (`floatwise.torch.scaling`), on any backend.

Everything beside the scale and the count of good steps is kept in one float32 vector, the memory, so that it is one
variable of the optimizer, saved with the others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from keras import ops

from floatwise.plan import LossScale

__all__ = ["MEMORY", "Memory", "first_memory", "moved"]

# The largest finite float16 (IEEE 754-2019, table 3.5: binary16).
_FLOAT16_MAX = 65504.0

# As in floatwise.torch.scaling.growth: intervals an overflow is remembered at most, and bits by which gradients of
# activations may exceed those of weights.
_LONGEST_HOLD = 64
_LARGEST_GAP_BITS = 12


class Memory(NamedTuple):
    """What the optimizer keeps beside the scale; every field is a float32 of shape [].

    Attributes:
      patience: Overflows in a row that are still tolerated before the scale backs off.
      skipped_steps: Steps with gradients that were not finite, exact up to 2**24.
      consecutive_skips: How many of the last in a row were.
      zero_share: The share of zeros among the gradients of the last step that was not skipped, 0 to 1.
      peak: The largest magnitude of an unscaled gradient; the past counts half as much after each growth interval.
      age: Steps without overflow since the scale grew, or since the beginning.
      hold: For how many more steps the last overflow is remembered.
      overflow_scale: The scale it happened at; infinite when none is remembered.
      overflow_peak: The peak then; 0 while it is not known.
    """

    patience: Any
    skipped_steps: Any
    consecutive_skips: Any
    zero_share: Any
    peak: Any
    age: Any
    hold: Any
    overflow_scale: Any
    overflow_peak: Any


MEMORY = len(Memory._fields)
"""Entries of the memory."""


def first_memory(settings: LossScale) -> list[float]:
    """Returns the memory of the beginning, as Python numbers."""
    window = settings.window_log2
    hold, over = (0.0, math.inf) if window is None else (math.inf, 2.0 * 2.0 ** window[1])
    return list(Memory(float(settings.hysteresis), 0.0, 0.0, 0.0, 0.0, 0.0, hold, over, 0.0))


def moved(
    settings: LossScale, scale: Any, good_steps: Any, memory: Any, finite: bool, largest: Any, zero_share: Any
) -> tuple[Any, Any, Any]:
    """Returns the scale, the count of good steps and the memory after a step.

    Args:
      settings: The plan's `[loss_scale]`.
      scale: The scale of the step, float32 of shape [].
      good_steps: Steps without overflow since the scale last moved or might have grown, int32 of shape [].
      memory: float32 of shape [MEMORY].
      finite: Whether all gradients were.
      largest: The largest magnitude of an unscaled gradient; anything when not `finite`.
      zero_share: The share of zeros among the gradients; anything when not `finite`.
    """
    was = Memory(*(memory[index] for index in range(MEMORY)))
    if finite:
        good = good_steps + 1
        is_due = good >= settings.growth_interval
        grows = ops.logical_and(is_due, _may_grow(settings, was, scale, largest))
        after = ops.where(grows, scale * settings.growth_factor, scale)
        good = ops.where(is_due, ops.zeros_like(good), good)
        patience = ops.zeros_like(was.patience) + float(settings.hysteresis)
    else:
        good = ops.zeros_like(good_steps)
        patience = was.patience - 1.0
        after = ops.where(patience > 0, scale, scale * settings.backoff_factor)
    if settings.mode == "static":
        after = scale
    else:  # a scale outside the bounds moves inward only
        after = ops.maximum(after, ops.minimum(scale, settings.floor))
        after = ops.minimum(after, ops.maximum(scale, settings.ceiling))
    kept = _noted(settings, was, scale, after, finite, largest)
    now = kept._replace(
        patience=patience,
        skipped_steps=was.skipped_steps + float(not finite),
        consecutive_skips=ops.zeros_like(was.patience) if finite else was.consecutive_skips + 1.0,
        zero_share=zero_share if finite else was.zero_share,
    )
    return after, good, ops.stack([ops.cast(value, "float32") for value in now])


def _noted(settings: LossScale, was: Memory, before: Any, after: Any, finite: bool, largest: Any) -> Memory:
    """Returns what the step has shown about room for growth; `floatwise.torch.scaling.growth` explains it."""
    interval = settings.growth_interval
    hold = was.hold - 1.0
    decayed = was.peak * math.pow(0.5, 1 / interval)
    if finite:
        peak = ops.maximum(decayed, largest)
        over = hold <= 0
        overflow_peak = ops.where(was.overflow_peak == 0, peak, was.overflow_peak)
        return was._replace(
            peak=peak,
            age=ops.where(after > before, ops.zeros_like(was.age), was.age + 1.0),
            hold=hold,
            overflow_scale=ops.where(over, ops.full_like(was.age, math.inf), was.overflow_scale),
            overflow_peak=overflow_peak,
        )
    times = ops.clip(interval / ops.maximum(was.age, 1.0), 1.0, float(_LONGEST_HOLD))
    return was._replace(peak=decayed, hold=times * float(interval), overflow_scale=before, overflow_peak=decayed)


def _may_grow(settings: LossScale, was: Memory, scale: Any, largest: Any) -> Any:
    if settings.growth == "fixed":
        return True
    factor = settings.growth_factor
    grown = scale * factor
    peak = ops.maximum(was.peak * math.pow(0.5, 1 / settings.growth_interval), largest)
    reached = grown * peak
    has_room = reached <= _FLOAT16_MAX * 2.0**-settings.headroom_bits
    tiny = ops.logical_and(ops.isfinite(was.hold), reached < _FLOAT16_MAX * 2.0**-_LARGEST_GAP_BITS)
    tiny = ops.logical_and(tiny, reached > 0)
    known = ops.logical_and(was.overflow_peak > 0, peak > 0)
    safe_peak = ops.where(peak > 0, peak, ops.ones_like(peak))
    shrunk = ops.where(known, was.overflow_peak / safe_peak, ops.ones_like(peak))
    below = grown <= was.overflow_scale * shrunk / math.sqrt(factor)
    return ops.logical_and(has_room, ops.logical_or(was.hold <= 1, ops.logical_or(tiny, below)))
