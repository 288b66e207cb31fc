# SPDX-License-Identifier: Apache-2.0
"""When a loss scale may grow: as far as the gradients leave room, and not to where it has overflowed.

`GradScaler` doubles the scale every `growth_interval` steps and loses a step each time it was wrong. The gradients
tell beforehand: a scale at which the largest of them would come near float16's largest value is not tried. This sees
the gradients of weights only. Those of activations can be larger and overflow first, so an overflow is remembered,
too: as the scale it happened at and how large the weights' gradients were then. As they shrink, what is remembered
allows larger scales.

An overflow need not be the scale's fault; one bad batch overflows at any scale. So:

* After a loss that was not finite itself nothing is remembered.
* An overflow soon after the scale grew speaks against the new scale, one long after against the batch: it is remembered
  for `growth_interval / good updates since growth` intervals, from 1 (what `GradScaler` does) to 64.
* Where gradients of weights are so small that those of activations would have to be 2**12 times as large to overflow,
  nothing that is remembered holds: bad batches cannot wear the scale down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from floatwise.torch.scaling.log import Update

__all__ = ["ScaleGrowth"]

# The largest finite float16 (IEEE 754-2019, table 3.5: binary16).
_FLOAT16_MAX = 65504.0

# Intervals an overflow is remembered at most. Chosen: it bounds what a true limit costs to one step in as many
# intervals, and what a wrong memory costs, too.
_LONGEST_HOLD = 64

# Chosen: of this many bits between gradients of weights and of activations no report is known; and below a largest
# gradient of 2**4, float16 has 28 more powers of two, so that nothing that matters vanishes.
_LARGEST_GAP_BITS = 12

_KEPT = ("peak", "age", "hold", "overflow_scale", "overflow_peak")


class ScaleGrowth:
    """What the gradients have shown, and whether the scale may grow. It knows nothing of devices.

    Args:
      headroom_bits: How many powers of two the largest gradient stays below float16's largest value after growth.
      safe_scale: The largest scale known to overflow nowhere. Twice as much is taken for an overflow that is
        remembered until another is seen. None: nothing is known.

    Attributes:
      peak: The largest magnitude of an unscaled gradient; the past counts half as much after each interval.
      age: Updates without overflow since the scale grew, or since the beginning.
      hold: For how many more updates the last overflow is remembered.
      overflow_scale: The scale it happened at; infinite when none is remembered.
      overflow_peak: The peak then; 0 while it is not known.
    """

    def __init__(self, headroom_bits: int, safe_scale: float | None = None) -> None:
        self.headroom_bits = headroom_bits
        self.peak = self.overflow_peak = 0.0
        self.age = 0
        self.hold = math.inf if safe_scale is not None else 0.0
        self.overflow_scale = math.inf if safe_scale is None else 2.0 * safe_scale
        self._first = self.state_dict()

    def note(self, update: Update, interval: int) -> None:
        """Notes an update; `interval` is the growth interval."""
        self.hold -= 1
        if not update.skipped:
            self.age += 1
        self.peak = self._peak_with(0.0 if update.skipped else update.largest / update.before, interval)
        if update.skipped and not update.loss_was_bad:
            self.hold = interval * min(max(interval / max(self.age, 1), 1), _LONGEST_HOLD)
            self.overflow_scale, self.overflow_peak = update.before, self.peak
        elif self.hold <= 0:
            self.overflow_scale = math.inf
        if self.overflow_peak == 0:
            self.overflow_peak = self.peak
        if update.after > update.before:
            self.age = 0

    def allows(self, scale: float, factor: float, interval: int, largest: float) -> bool:
        """Returns whether the scale may grow in the update that is not noted yet.

        Args:
          scale: The scale until then.
          factor: The growth factor.
          interval: The growth interval.
          largest: The largest magnitude of a gradient, scaled; not finite when the scale will not grow anyway.
        """
        grown = scale * factor
        peak = self._peak_with(largest / scale, interval) if math.isfinite(largest) else self.peak
        if grown * peak > _FLOAT16_MAX * 2.0**-self.headroom_bits:
            return False
        if self.hold <= 1 or (math.isfinite(self.hold) and 0 < grown * peak < _FLOAT16_MAX * 2.0**-_LARGEST_GAP_BITS):
            return True
        # Half a growth step of tolerance: gradients that vary a little have neither shrunk nor grown.
        shrunk = self.overflow_peak / peak if self.overflow_peak and peak else 1.0
        return grown <= self.overflow_scale * shrunk / math.sqrt(factor)

    def forget(self) -> None:
        """Starts anew, without a scale known to be safe: the scale was set by hand."""
        self.__init__(self.headroom_bits)  # type: ignore[misc]

    def state_dict(self) -> dict[str, float]:
        """Returns what it keeps."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state_dict(self, state: Mapping[str, float] | None) -> None:
        """Goes on from a state; from None as at the beginning."""
        for name, value in (state or self._first).items():
            setattr(self, name, value)

    def _peak_with(self, magnitude: float, interval: int) -> float:
        return max(self.peak * math.pow(0.5, 1 / interval), magnitude)
