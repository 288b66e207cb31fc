# SPDX-License-Identifier: Apache-2.0
"""Values to the codes a format stores, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.errors import BadInputError
from floatwise.formats.info import Format
from floatwise.formats.rounding import FloatArray, round_to_format
from floatwise.formats.table import get_format

__all__ = ["Codes", "decode", "encode"]

Codes = NDArray[np.unsignedinteger[Any]]

# IEEE 754-2019, table 3.5: binary64, which holds every value of every row.
_BINARY64_MANTISSA_BITS = 52
_BINARY64_BIAS = 1023


def encode(x: FloatArray, fmt: Format | str) -> Codes:
    """Returns the codes of `x` in `fmt`, rounded to nearest even; overflow is as the format's row says.

    NaN is the one quiet NaN of its sign: payloads are not kept.

    Args:
      x: float16, float32 or float64 values of any shape.
      fmt: A format or its name.

    Returns:
      An array of `x`'s shape, of the smallest unsigned type that holds `fmt.bits` bits.
    """
    row = get_format(fmt)
    values = round_to_format(x, row)
    if row.name == "float64":
        return np.where(np.isnan(values), np.copysign(np.nan, values), values).view(np.uint64)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    magnitude = np.asarray(np.abs(wide))
    rebias = (_BINARY64_BIAS - row.bias) << row.mantissa_bits
    normal = (magnitude.view(np.int64) >> (_BINARY64_MANTISSA_BITS - row.mantissa_bits)) - rebias
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    subnormal = (np.minimum(finite, row.smallest_normal) / row.smallest_subnormal).astype(np.int64)
    codes = np.where(magnitude >= row.smallest_normal, normal, subnormal)
    codes = np.where(np.isinf(magnitude), _exponent_mask(row), codes)
    codes = np.where(np.isnan(magnitude), _quiet_nan(row), codes)
    if row.signed:
        codes = codes | (np.signbit(wide).astype(np.int64) << (row.bits - 1))
    return codes.astype(_code_dtype(row))


def decode(codes: Codes, fmt: Format | str) -> FloatArray:
    """Returns the values of `codes`: float32, or float64 when `fmt` is float64.

    Raises:
      BadInputError: `codes` is not an array of unsigned integers below `2**fmt.bits`.
    """
    row = get_format(fmt)
    if codes.dtype.kind != "u" or (codes.size and int(codes.max()) >> row.bits):
        raise BadInputError(
            f"got codes of {codes.dtype} up to {codes.max() if codes.size else 0}; "
            f"allowed for {row.name}: unsigned integers below 2**{row.bits}"
        )
    if row.name == "float64":
        return codes.astype(np.uint64).view(np.float64)
    code = codes.astype(np.int64)
    below_sign = code & ((1 << (row.bits - row.signed)) - 1)
    negative = below_sign != code
    field, fraction = below_sign >> row.mantissa_bits, below_sign & ((1 << row.mantissa_bits) - 1)
    subnormal = (field == 0) & row.zero
    significand = np.where(subnormal, fraction, fraction + (1 << row.mantissa_bits))
    exponent = np.where(subnormal, 1, field) - row.bias - row.mantissa_bits
    magnitude = np.ldexp(significand.astype(np.float64), exponent)
    if row.infinities:
        magnitude = np.where(below_sign == _exponent_mask(row), np.inf, magnitude)
    magnitude = np.where(_is_nan(code, below_sign, row), np.nan, magnitude)
    return np.copysign(magnitude, np.where(negative, -1.0, 1.0)).astype(np.float32)


def _exponent_mask(fmt: Format) -> int:
    return ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits


def _quiet_nan(fmt: Format) -> int:
    """Code of NaN below the sign bit; formats without NaN never reach it."""
    if fmt.nans == "ieee":
        return _exponent_mask(fmt) | (1 << (fmt.mantissa_bits - 1))
    if fmt.nans == "negative_zero":
        return 1 << (fmt.bits - 1)
    return (1 << (fmt.bits - fmt.signed)) - 1


def _is_nan(code: NDArray[np.int64], below_sign: NDArray[np.int64], fmt: Format) -> NDArray[np.bool_]:
    if fmt.nans == "ieee":
        return below_sign > _exponent_mask(fmt)
    if fmt.nans == "none":
        return np.zeros(code.shape, dtype=np.bool_)
    return np.equal(code if fmt.nans == "negative_zero" else below_sign, _quiet_nan(fmt))


def _code_dtype(fmt: Format) -> type[np.unsignedinteger[Any]]:
    for dtype in (np.uint8, np.uint16):
        if fmt.bits <= np.iinfo(dtype).bits:
            return dtype
    return np.uint32
