# SPDX-License-Identifier: Apache-2.0
"""Summarising NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.formats import get_format, round_to_format
from floatwise.stats.histogram import EXPONENT_BINS, exponent_counts
from floatwise.stats.summary import TensorSummary

__all__ = ["summarise"]


def summarise(x: NDArray[np.floating[Any]], formats: Sequence[str] = ("float16", "bfloat16")) -> TensorSummary:
    """Returns the summary of every value of `x`, taken as float32.

    Noise is of a saturating cast: one overflow would otherwise make it infinite and hide the rest, and
    `overflow_share` says how much of it there is.

    Args:
      x: Values of any shape.
      formats: Formats whose quantisation noise is measured; the default ones are those a plan weighs first.

    Raises:
      UnknownNameError: No format has one of the names.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(x, dtype=np.float32).reshape(-1)
    counts = exponent_counts(values)
    finite = values[np.isfinite(values)]
    exact = finite.astype(np.float64)
    rows = [get_format(name) for name in formats]
    return TensorSummary(
        counts=counts,
        amax=float(np.abs(finite).max(initial=0.0)),
        elements=values.size,
        zeros=int(np.count_nonzero(finite == 0)),
        nonfinite=int(counts[EXPONENT_BINS - 1]),
        signal=float(np.square(exact).sum()),
        noise={row.name: float(np.square(exact - round_to_format(finite, row, saturate=True)).sum()) for row in rows},
        observations=1,
    )
