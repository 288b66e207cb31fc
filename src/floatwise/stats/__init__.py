# SPDX-License-Identifier: Apache-2.0
"""What values a tensor holds, and what a number format would do to them.

`floatwise.stats.torch` summarises PyTorch tensors; this package itself needs NumPy only.
"""

from __future__ import annotations

from floatwise.stats.histogram import exponent_counts
from floatwise.stats.measure import summarise
from floatwise.stats.shares import overflow_share, subnormal_share, underflow_share
from floatwise.stats.summary import TensorSummary

__all__ = [
    "TensorSummary",
    "exponent_counts",
    "overflow_share",
    "subnormal_share",
    "summarise",
    "underflow_share",
]
