# SPDX-License-Identifier: Apache-2.0
"""Operands of a product as float8 would hold them, back in float32, and a count of what the cast lost.

Scale, rounding and unscaling are those of torchao 0.18 (`float8/float8_utils.py`, `float8_training_tensor.py`,
`float8_ops.py`), bit for bit; blocks are those of `floatwise.formats.quantize_blocks`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from floatwise.formats import Format
from floatwise.rehearse.float8_scaling import Float8Scaling, Granularity

__all__ = ["CastCounts", "CastTally", "cast_operand"]

# torchao 0.18, float8/float8_utils.py: keeps the scale of a tensor of zeros finite.
_SMALLEST_AMAX = 1e-12

#: Elements of a tensor that are counted, at least. A share of 0.1 % is known to ±0.025 % from so many (binomial, two
#: deviations); counting all takes as long as the cast.
_COUNTED_ELEMENTS = 1 << 16

# IEEE 754-2019, table 3.5: binary32.
_MANTISSA_BITS = 23
_BIAS = 127
_EXPONENT_MASK = 0x7F800000
_MANTISSA_MASK = 0x007FFFFF


@dataclass(frozen=True)
class CastCounts:
    """What the casts of one operand of one module lost, all steps together.

    Attributes:
      casts: How many tensors were cast.
      elements: Elements looked at: all of them, or of larger tensors every few rows.
      zeros: Elements that were zero before.
      underflowed: Elements that became zero.
      overflowed: Finite elements past the largest value, which were cut to it; counted before the cast.
      nonfinite_casts: Tensors with an infinity or NaN in them.
      amax: The largest magnitude, before scaling.
    """

    casts: int = 0
    elements: int = 0
    zeros: int = 0
    underflowed: int = 0
    overflowed: int = 0
    nonfinite_casts: int = 0
    amax: float = 0.0

    @property
    def underflow_share(self) -> float:
        """Share of the elements that were not zero before and are zero after; 0.0 when there are none."""
        return self.underflowed / max(self.elements - self.zeros, 1)

    @property
    def overflow_share(self) -> float:
        """Share of the elements that were not zero before and were cut; 0.0 when there are none."""
        return self.overflowed / max(self.elements - self.zeros, 1)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts and shares as plain data."""
        return {**asdict(self), "underflow_share": self.underflow_share, "overflow_share": self.overflow_share}


class CastTally:
    """Adds up what casts lose, on the tensors' own device: reading it is what waits for a GPU."""

    def __init__(self) -> None:
        self._casts = self._elements = 0
        self._sums: Tensor | None = None
        self._amax: Tensor | None = None

    def add(self, values: Tensor, rounded: Tensor, amax: Tensor, largest: float) -> None:
        """Counts one cast.

        Args:
          values: Before scaling, two-dimensional.
          rounded: Scaled and rounded, of `values`' shape, not yet cut.
          amax: Magnitude of the largest element: of all, or of each row or block.
          largest: Largest value of the format.
        """
        every = (values.shape[0] * values.shape[1] // _COUNTED_ELEMENTS) | 1
        before, after = values[::every], rounded[::every]
        self._casts += 1
        self._elements += before.numel()
        top = amax.amax().to(torch.float32)
        filled = torch.count_nonzero(before)
        sums = torch.stack(
            (
                before.numel() - filled,
                filled - torch.count_nonzero(after),
                torch.count_nonzero(after.abs() > largest),
                (~top.isfinite()).to(torch.int64),
            )
        )
        finite = top.nan_to_num(0.0, posinf=0.0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._amax = finite if self._amax is None else torch.maximum(self._amax, finite)

    def counts(self) -> CastCounts:
        """Returns the counts up to now."""
        if self._sums is None or self._amax is None:
            return CastCounts()
        zeros, underflowed, overflowed, nonfinite = self._sums.tolist()
        return CastCounts(self._casts, self._elements, zeros, underflowed, overflowed, nonfinite, float(self._amax))


def cast_operand(
    values: Tensor,
    fmt: Format,
    scaling: Float8Scaling,
    dim: int,
    tally: CastTally | None = None,
    granularity: Granularity | None = None,
) -> Tensor:
    """Returns the operand that a float8 product would see, in float32 and unscaled.

    Args:
      values: float32, bfloat16 or float16, two-dimensional, not empty.
      fmt: The float8 format.
      scaling: How it is scaled.
      dim: The dimension that the product sums over, 0 or 1: a row, or the blocks, run along it.
      tally: Where to count what is lost, if anywhere.
      granularity: Other than the scaling's own.
    """
    granularity = granularity or scaling.granularity
    if granularity == "mx":
        return _cast_blocks(values, fmt, scaling, dim, tally)
    wide = values.to(torch.float32)
    work = wide.abs()
    amax = work.amax() if granularity == "tensorwise" else work.amax(dim, keepdim=True)
    scale = _scale(amax, fmt, scaling.power_of_two_scales)
    # No finite value comes out past the largest one by more than a rounding error: there is nothing to cut.
    rounded = _round_(wide * scale if wide is values else wide.mul_(scale), fmt, work)
    if tally is not None:
        tally.add(values, rounded, amax, fmt.max)
    return rounded.div_(scale)


def _scale(amax: Tensor, fmt: Format, power_of_two: bool) -> Tensor:
    scale = (fmt.max / amax.to(torch.float64).clamp(min=_SMALLEST_AMAX)).to(torch.float32)
    # In float32, as torchao does: a scale within a few ulp below a power of two becomes that power.
    return torch.exp2(torch.floor(torch.log2(scale))) if power_of_two else scale


def _round_(scaled: Tensor, fmt: Format, work: Tensor) -> Tensor:
    """Rounds float32 values to nearest even in place, as if the format's exponents had no upper end.

    Adding a number whose last bit is worth one step of the format rounds to whole steps; subtracting it is
    exact. A cast to torch's dtype and back does the same and takes six times as long.

    Args:
      scaled: The values.
      fmt: The format.
      work: Memory of the same shape that may be written to.
    """
    torch.bitwise_and(scaled.view(torch.int32), _EXPONENT_MASK, out=work.view(torch.int32))
    power = work.clamp_(min=fmt.smallest_normal)
    shift = 1.5 * 2.0 ** (_MANTISSA_BITS - fmt.mantissa_bits)
    return scaled.add_(power, alpha=shift).sub_(power, alpha=shift)


def _cast_blocks(values: Tensor, fmt: Format, scaling: Float8Scaling, dim: int, tally: CastTally | None) -> Tensor:
    rows, columns = values.shape
    size = scaling.block_size
    missing = -values.shape[dim] % size
    padded = values.to(torch.float32)
    if missing:
        padded = torch.nn.functional.pad(padded, (0, 0, 0, missing) if dim == 0 else (0, missing))
    blocks = padded.reshape(-1, size, columns) if dim == 0 else padded.reshape(rows, -1, size)
    work = blocks.abs()
    amax = work.amax(dim + 1 if dim == 0 else 2, keepdim=True)
    scale = _block_scale(amax, fmt, scaling)
    rounded = _round_(blocks / scale, fmt, work)
    if tally is not None:
        tally.add(values, rounded.view(padded.shape)[:rows, :columns], amax, fmt.max)
    if scaling.block_scale == "floor":
        rounded.clamp_(-fmt.max, fmt.max)
    return rounded.mul_(scale).view(padded.shape)[:rows, :columns]


def _block_scale(amax: Tensor, fmt: Format, scaling: Float8Scaling) -> Tensor:
    """Returns a power of two for each block, within the range of float8_e8m0fnu; NaN where amax is not finite."""
    if scaling.block_scale == "floor":
        exponent = (amax.view(torch.int32) >> _MANTISSA_BITS) - _BIAS - fmt.max_exponent
    else:
        words = (amax / fmt.max).view(torch.int32)
        exponent = (words >> _MANTISSA_BITS) - _BIAS + (words & _MANTISSA_MASK).ne(0)
    scale = torch.ldexp(torch.ones_like(amax), exponent.clamp(-_BIAS, _BIAS))
    return scale.masked_fill(~amax.isfinite(), torch.nan)
