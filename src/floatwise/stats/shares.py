# SPDX-License-Identifier: Apache-2.0
"""What a format would do to the values of a summary, without casting anything again.

Bins are whole powers of two, as are the thresholds of flushing and of subnormals, so a prediction is exact
but for values that lie on a threshold or round onto it. Overflow thresholds lie within a bin; there the exact
amax decides whether anything overflows, and only how much is an estimate.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from floatwise.formats import Format, get_format
from floatwise.stats.histogram import EXPONENT_BIAS, EXPONENT_BINS
from floatwise.stats.summary import TensorSummary

__all__ = ["overflow_share", "subnormal_share", "underflow_share"]

# By bin, the exponent of the power of two just above it: every bin goes by its upper edge. Bin 0 has that of
# float32's smallest normal, which is the lower edge of bin 1.
_UPPER_EXPONENT = np.arange(EXPONENT_BINS - 1) - EXPONENT_BIAS + 1


def underflow_share(summary: TensorSummary, fmt: Format | str, scale_log2: int = 0) -> float:
    """Share of the nonzero finite values that `fmt` rounds to zero after multiplication by 2**scale_log2.

    Exact but for values equal to the flush threshold, which count as kept, and float32 subnormals, which
    count as flushed only where all of them are.

    Args:
      summary: The values.
      fmt: The format they would be cast to, to nearest even.
      scale_log2: Power of two by which they would be multiplied before.

    Returns:
      A fraction in [0, 1]; 0.0 when there is no nonzero finite value.
    """
    return _share(summary, _UPPER_EXPONENT + scale_log2 <= _flush_exponent(get_format(fmt)))


def subnormal_share(summary: TensorSummary, fmt: Format | str, scale_log2: int = 0) -> float:
    """Share of the nonzero finite values that become subnormal in `fmt`: kept, but with fewer bits.

    Exact but for values equal to the flush threshold, which `fmt` makes zero, and float32 subnormals, which
    all go with the largest of them. Values that round up to the smallest normal count as subnormal.

    Args:
      summary: The values.
      fmt: The format they would be cast to, to nearest even.
      scale_log2: Power of two by which they would be multiplied before.

    Returns:
      A fraction in [0, 1]; 0.0 when there is no nonzero finite value.
    """
    row = get_format(fmt)
    upper = _UPPER_EXPONENT + scale_log2
    return _share(summary, (upper > _flush_exponent(row)) & (upper <= row.min_exponent) & row.zero)


def overflow_share(summary: TensorSummary, fmt: Format | str, scale_log2: int = 0) -> float:
    """Share of the finite values, zeros among them, that `fmt` rounds past its largest value.

    0.0 exactly when `summary.amax` does not overflow, and at least one value of the whole tensors when it
    does. In the one bin that the overflow threshold divides, values are taken as evenly spread up to the
    bin's end, or up to amax where that comes first.

    Args:
      summary: The values.
      fmt: The format they would be cast to, to nearest even.
      scale_log2: Power of two by which they would be multiplied before.

    Returns:
      A fraction in [0, 1]; 0.0 when there is no finite value.
    """
    row = get_format(fmt)
    amax = math.ldexp(summary.amax, scale_log2)
    if not row.overflows(amax):
        return 0.0
    threshold = row.overflow_threshold
    divided = row.max_exponent - scale_log2 + EXPONENT_BIAS
    beyond = float(summary.counts[max(divided + 1, 1) : EXPONENT_BINS - 1].sum())
    if 1 <= divided < EXPONENT_BINS - 1:
        start = math.ldexp(1.0, row.max_exponent)
        end = min(amax, 2 * start)
        beyond += float(summary.counts[divided]) * (end - threshold) / (end - start)
    finite = summary.seen - summary.nonfinite
    return min(max(beyond / finite if finite else 0.0, 1 / summary.elements), 1.0)


def _flush_exponent(fmt: Format) -> float:
    return math.log2(fmt.flush_threshold) if fmt.flush_threshold else -math.inf


def _share(summary: TensorSummary, bins: NDArray[np.bool_]) -> float:
    """Share of the nonzero finite values that lie in `bins`."""
    nonzero = summary.counts[: EXPONENT_BINS - 1].copy()
    nonzero[0] -= summary.zeros
    total = int(nonzero.sum())
    return float(nonzero[bins].sum() / total) if total else 0.0
