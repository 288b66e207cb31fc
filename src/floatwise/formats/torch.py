# SPDX-License-Identifier: Apache-2.0
"""Rounding of PyTorch tensors to any format of the table, value for value as the NumPy side rounds arrays."""

from __future__ import annotations

import math

import torch

from floatwise.errors import BadInputError
from floatwise.formats.info import Format
from floatwise.formats.rounding import Rounding, overflow_value, step_exponents
from floatwise.formats.table import get_format

__all__ = ["round_to_format"]

# Casts that round to nearest even within the format's range. Past it they differ between torch versions (e4m3
# gave NaN and now saturates, pytorch PR #178817), so they only ever see values within it.
_CASTS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}

# IEEE 754-2019, table 3.5.
_BINARY32_MANTISSA_BITS = 23
_BINARY64_MANTISSA_BITS = 52
_BINARY64_BIAS = 1023


def round_to_format(
    tensor: torch.Tensor,
    fmt: Format | str,
    *,
    rounding: Rounding = "nearest_even",
    saturate: bool | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Returns the values of `tensor` as `fmt` would hold them.

    What it returns is what `floatwise.formats.round_to_format` returns for the same values; no gradient flows
    through it. Formats without a torch cast, and stochastic rounding, need a device with float64.

    Args:
      tensor: float16, bfloat16, float32 or float64 values of any shape.
      fmt: A format or its name.
      rounding: `nearest_even` or `stochastic`.
      saturate: True takes magnitudes past the largest finite value, infinities too, to that value; False to
        infinity or NaN; None does what the format's row says.
      generator: Source of randomness for stochastic rounding; torch's default one when None.

    Returns:
      A new tensor of the same shape and device: float32, or float64 when `fmt` is float64.

    Raises:
      BadInputError: `tensor` is not floating point, `rounding` is unknown, or `saturate` is False for a
        format that has neither infinities nor NaN.
    """
    row = get_format(fmt)
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise BadInputError(
            f"got a tensor of {tensor.dtype}; allowed: float16, bfloat16, float32, float64. Convert it first."
        )
    if rounding not in ("nearest_even", "stochastic"):
        raise BadInputError(f"got rounding={rounding!r}; allowed: 'nearest_even', 'stochastic'")
    beyond = overflow_value(row, saturate)
    values = tensor.detach()
    if row.name == "float32" and rounding == "nearest_even":
        return values.float().clamp(-beyond, beyond)
    # float64 is rounded once, from all its bits; torch's casts from it go by way of float32.
    if rounding == "nearest_even" and values.dtype != torch.float64:
        if row.name in _CASTS:
            return _by_cast(values.float(), row, beyond)
        if row.name == "tfloat32":
            return _to_tfloat32(values.float(), row).clamp(-beyond, beyond)
    return _by_arithmetic(values.double(), row, rounding, beyond, generator)


def _by_cast(values: torch.Tensor, fmt: Format, beyond: float) -> torch.Tensor:
    if beyond == math.inf:
        return values.to(_CASTS[fmt.name]).float()
    rounded = values.clamp(-fmt.max, fmt.max).to(_CASTS[fmt.name]).float()
    if beyond == fmt.max:
        return rounded
    magnitude, edge = values.abs(), fmt.overflow_threshold
    return rounded.masked_fill(magnitude >= edge if fmt.overflow_inclusive else magnitude > edge, beyond)


def _to_tfloat32(values: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Drops trailing bits of float32 words, carrying into what remains; overflow carries into infinity."""
    words = values.view(torch.int32)
    dropped = _BINARY32_MANTISSA_BITS - fmt.mantissa_bits
    half_less_tie = (1 << (dropped - 1)) - 1 + ((words >> dropped) & 1)
    rounded = ((words + half_less_tie) & (-1 << dropped)).view(torch.float32)
    return torch.where(values.isnan(), values, rounded)


def _by_arithmetic(
    wide: torch.Tensor, fmt: Format, rounding: Rounding, beyond: float, generator: torch.Generator | None
) -> torch.Tensor:
    """The NumPy side's algorithm; every operation on float64 but the rounding itself is exact."""
    magnitude, negative = wide.abs(), wide.signbit()
    if fmt.name != "float64":
        magnitude = _round_magnitude(magnitude, fmt, rounding, generator)
    magnitude = magnitude.masked_fill(magnitude > fmt.max, beyond)
    if not fmt.signed:
        magnitude = magnitude.masked_fill(negative, math.nan)
    if fmt.nans == "negative_zero":
        negative = negative & (magnitude != 0)
    if fmt.nans == "none":
        lost = magnitude.isnan()
        magnitude, negative = magnitude.masked_fill(lost, 0.0), negative ^ lost
    signed = torch.where(negative, -magnitude, magnitude) if fmt.signed else magnitude
    return signed if fmt.name == "float64" else signed.float()


def _round_magnitude(
    magnitude: torch.Tensor, fmt: Format, rounding: Rounding, generator: torch.Generator | None
) -> torch.Tensor:
    lowest, highest = step_exponents(fmt, rounding)
    field = magnitude.view(torch.int64) >> _BINARY64_MANTISSA_BITS
    field = field.clamp(lowest + _BINARY64_BIAS, highest + _BINARY64_BIAS)
    step = ((field - fmt.mantissa_bits) << _BINARY64_MANTISSA_BITS).view(torch.float64)
    in_steps = magnitude / step
    if rounding == "nearest_even":
        rounded = in_steps.round() * step
    else:
        below = in_steps.floor()
        chance = torch.rand(in_steps.shape, dtype=torch.float64, device=in_steps.device, generator=generator)
        rounded = (below + (chance < in_steps - below)) * step
    if fmt.zero:
        return rounded
    return rounded.clamp(min=fmt.smallest_normal).masked_fill(magnitude == 0, math.nan)
