# SPDX-License-Identifier: Apache-2.0
"""What a number format is: one frozen row, from which every other fact follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from floatwise.language import Text

__all__ = ["BlockFormat", "Format", "NanEncoding", "Overflow"]

NanEncoding = Literal["ieee", "all_ones", "negative_zero", "none"]
Overflow = Literal["infinity", "nan", "saturate"]

# float64's own largest exponent (IEEE 754-2019, table 3.5): facts past it cannot be a Python float.
_PYTHON_MAX_EXPONENT = 1023


@dataclass(frozen=True, kw_only=True)
class Format:
    """A floating-point format as its specification defines it.

    Attributes:
      name: Canonical name; Floatwise prints no other.
      bits: Bits of one code, sign included.
      exponent_bits: Width of the exponent field.
      mantissa_bits: Trailing significand bits; the leading bit is implied.
      bias: Exponent bias.
      signed: False for formats of scale factors, which have no sign bit.
      infinities: True when the format has codes for the infinities.
      nans: Which codes are NaN: `ieee` (exponent all ones, mantissa not zero), `all_ones` (every bit below
        the sign is one), `negative_zero` (the code minus zero would have), `none`.
      overflow: What a plain cast makes of magnitudes past `max`; infinities become the same.
      source: The specification.
      use: What the format is good for in training.
      pitfalls: What to beware of.
      aliases: Other names that are accepted.
      zero: False when the format has no zero: exponent field 0 is then one more power of two.
      storage_bits: Bits one value takes in memory where that differs from `bits`.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    signed: bool = True
    infinities: bool
    nans: NanEncoding
    overflow: Overflow
    source: str
    use: Text
    pitfalls: Text
    aliases: tuple[str, ...] = ()
    zero: bool = True
    storage_bits: int | None = None

    @property
    def max_exponent(self) -> int:
        """Exponent of `max`: `max` lies in [2**max_exponent, 2**(max_exponent + 1))."""
        reserved = self.nans == "ieee" or (self.nans == "all_ones" and self.mantissa_bits == 0)
        return (1 << self.exponent_bits) - 1 - reserved - self.bias

    @property
    def min_exponent(self) -> int:
        """Exponent of `smallest_normal`."""
        return int(self.zero) - self.bias

    @property
    def max(self) -> float:
        """Largest finite value."""
        return math.ldexp(self._max_significand, self.max_exponent - self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with the full number of significant bits."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value; `smallest_normal` itself where the format has no subnormals."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value (the ulp at 1)."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def flush_threshold(self) -> float:
        """Largest magnitude that nearest-even rounds to zero: half of `smallest_subnormal`, inclusive.

        0.0 when nothing but zero becomes zero: formats without a zero, and float64, whose threshold lies
        below every Python float.
        """
        return self.smallest_subnormal / 2 if self.zero else 0.0

    @property
    def overflow_threshold(self) -> float:
        """Magnitude from which nearest-even rounds past `max`: `max` plus half its ulp.

        The threshold itself overflows when `overflow_inclusive`, else it still rounds to `max`. Infinity for
        float64, whose threshold lies past every Python float.
        """
        if self.max_exponent >= _PYTHON_MAX_EXPONENT:
            return math.inf
        return math.ldexp(2 * self._max_significand + 1, self.max_exponent - self.mantissa_bits - 1)

    @property
    def overflow_inclusive(self) -> bool:
        """True when `overflow_threshold`, which is a tie, rounds away from `max` because `max` is odd."""
        return self._max_significand % 2 == 1

    @property
    def dynamic_range_log2(self) -> float:
        """Binary orders of magnitude between `smallest_subnormal` and `max`."""
        return math.log2(self.max) - (self.min_exponent - self.mantissa_bits)

    @property
    def storage_bytes(self) -> float:
        """Bytes one value takes in memory, packed."""
        return (self.storage_bits or self.bits) / 8

    def overflows(self, magnitude: float) -> bool:
        """Returns whether nearest-even rounds `magnitude` past `max`."""
        if self.overflow_inclusive:
            return magnitude >= self.overflow_threshold
        return magnitude > self.overflow_threshold

    @property
    def _max_significand(self) -> int:
        """Significand of `max` as an integer, leading bit included."""
        nan_takes_the_last = self.nans == "all_ones" and self.mantissa_bits > 0
        return (1 << (self.mantissa_bits + 1)) - 1 - nan_takes_the_last


@dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """A format of small blocks of narrow elements that share a scale factor.

    Attributes:
      name: Canonical name.
      element: Format of one element, before scaling.
      block_size: Elements that share one scale.
      scale: Format of the shared scale.
      tensor_scale: True when one more float32 scale serves the whole tensor.
      twos_complement: True when elements are stored as integers, which have no minus zero.
      source: The specification.
      use: What the format is good for in training.
      pitfalls: What to beware of.
      aliases: Other names that are accepted.
    """

    name: str
    element: Format
    block_size: int
    scale: Format
    tensor_scale: bool = False
    twos_complement: bool = False
    source: str
    use: Text
    pitfalls: Text
    aliases: tuple[str, ...] = ()

    @property
    def bits_per_element(self) -> float:
        """Bits of one element with its share of the block's scale."""
        return self.element.bits + self.scale.bits / self.block_size

    @property
    def storage_bytes(self) -> float:
        """Bytes one element takes in memory, with its share of the block's scale."""
        return self.bits_per_element / 8

    @property
    def max(self) -> float:
        """Largest finite value of an element under the largest block scale, before any tensor scale."""
        return self.element.max * self.scale.max

    @property
    def block_range_log2(self) -> float:
        """Binary orders of magnitude that fit into one block."""
        return self.element.dynamic_range_log2
