# SPDX-License-Identifier: Apache-2.0
"""Rounding of NumPy arrays to any format of the table, to nearest even or stochastically."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from floatwise.errors import BadInputError
from floatwise.formats.info import Format
from floatwise.formats.table import get_format

__all__ = ["FloatArray", "Rounding", "overflow_value", "round_to_format", "step_exponents"]

FloatArray = NDArray[np.floating[Any]]
Rounding = Literal["nearest_even", "stochastic"]

# IEEE 754-2019, table 3.5: binary64, in which all the arithmetic below is exact.
_BINARY64_MANTISSA_BITS = 52
_BINARY64_BIAS = 1023


def round_to_format(
    x: FloatArray,
    fmt: Format | str,
    *,
    rounding: Rounding = "nearest_even",
    saturate: bool | None = None,
    rng: np.random.Generator | None = None,
) -> FloatArray:
    """Returns the values of `x` as `fmt` would hold them.

    Values between two neighbours of the format go to the nearer one, ties to even; or to either one with
    probability such that the expectation is the value itself. float64 input is rounded once, not by way of
    float32. A NaN becomes a zero of the other sign where the format has none, as in ml_dtypes: count
    non-finite values before the cast.

    Args:
      x: float16, float32 or float64 values of any shape.
      fmt: A format or its name.
      rounding: `nearest_even` or `stochastic`.
      saturate: True takes magnitudes past the largest finite value, infinities too, to that value (the
        saturating mode of OCP OFP8 1.0); False to infinity or NaN; None does what the format's row says.
      rng: Source of randomness for stochastic rounding; a fresh one when None.

    Returns:
      A new array of `x`'s shape: float32, or float64 when `fmt` is float64.

    Raises:
      BadInputError: `x` is not floating point, `rounding` is unknown, or `saturate` is False for a format
        that has neither infinities nor NaN.
    """
    row = get_format(fmt)
    if x.dtype not in (np.float16, np.float32, np.float64):
        raise BadInputError(f"got an array of {x.dtype}; allowed: float16, float32, float64. Convert it first.")
    if rounding not in ("nearest_even", "stochastic"):
        raise BadInputError(f"got rounding={rounding!r}; allowed: 'nearest_even', 'stochastic'")
    beyond = overflow_value(row, saturate)
    dtype = np.float64 if row.name == "float64" else np.float32
    # Signalling NaNs raise the invalid flag on conversion; inf - inf does in stochastic rounding.
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        magnitude = np.abs(wide)
        if row.name != "float64":
            magnitude = _round_magnitude(magnitude, row, rounding, rng)
        magnitude = np.where(magnitude > row.max, beyond, magnitude)
        return np.asarray(_signed(magnitude, np.signbit(wide), row), dtype=dtype)


def overflow_value(fmt: Format, saturate: bool | None) -> float:
    """Returns what magnitudes past `fmt.max` become.

    Args:
      fmt: The target format.
      saturate: As in `round_to_format`.

    Raises:
      BadInputError: `saturate` is False and the format has neither infinities nor NaN.
    """
    if saturate or (saturate is None and fmt.overflow == "saturate"):
        return fmt.max
    if fmt.infinities:
        return float("inf")
    if fmt.nans == "none":
        raise BadInputError(
            f"got saturate=False for {fmt.name}, which has neither infinities nor NaN to overflow to; "
            "allowed: True, None"
        )
    return float("nan")


def step_exponents(fmt: Format, rounding: Rounding) -> tuple[int, int]:
    """Returns the exponents below and above which the distance between neighbours stays the same.

    The upper one is one past the format's own, so that the distance is finite for infinities and NaN too.
    """
    # Where code 0 is no zero, ml_dtypes and torch still take it for one when they round to nearest: whatever
    # lies between the two smallest powers of two goes up. A stochastic rounding like that would be biased.
    zero_in_disguise = not fmt.zero and rounding == "nearest_even"
    return fmt.min_exponent + zero_in_disguise, fmt.max_exponent + 1


def _round_magnitude(
    magnitude: NDArray[np.float64], fmt: Format, rounding: Rounding, rng: np.random.Generator | None
) -> NDArray[np.float64]:
    """Rounds as if the exponent had no upper end; every operation but the rounding itself is exact."""
    lowest, highest = step_exponents(fmt, rounding)
    field = np.asarray(magnitude).view(np.int64) >> _BINARY64_MANTISSA_BITS
    field = np.clip(field, lowest + _BINARY64_BIAS, highest + _BINARY64_BIAS)
    step = ((field - fmt.mantissa_bits) << _BINARY64_MANTISSA_BITS).view(np.float64)
    in_steps = magnitude / step
    rounded: NDArray[np.float64]
    if rounding == "nearest_even":
        rounded = np.rint(in_steps) * step
    else:
        below = np.floor(in_steps)
        generator = rng if rng is not None else np.random.default_rng()
        rounded = (below + (generator.random(in_steps.shape) < in_steps - below)) * step
    if fmt.zero:
        return rounded
    # Zero has no code, so it is NaN as in ml_dtypes; any other small value is the smallest power of two.
    return np.where(magnitude == 0, np.nan, np.maximum(rounded, fmt.smallest_normal))


def _signed(magnitude: NDArray[np.float64], negative: NDArray[np.bool_], fmt: Format) -> NDArray[np.float64]:
    """Puts the sign back, as far as the format has signs, zeros and NaN."""
    if not fmt.signed:
        return np.where(negative, np.nan, magnitude)
    if fmt.nans == "negative_zero":
        negative = negative & (magnitude != 0)
    if fmt.nans == "none":
        lost = np.isnan(magnitude)
        magnitude, negative = np.where(lost, 0.0, magnitude), negative ^ lost
    return np.copysign(magnitude, np.where(negative, -1.0, 1.0))
