# SPDX-License-Identifier: Apache-2.0
"""Numbers as a sentence shows them."""

from __future__ import annotations

__all__ = ["gibibytes", "magnitude", "percent"]


def magnitude(value: float) -> str:
    """Returns three significant digits, without an exponent from 0.001 to 999999."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2e}"


def percent(share: float) -> str:
    """Returns a share as a percentage that never shows a small share as zero."""
    if share == 0:
        return "0 %"
    if 0 < share < 1e-4:
        return "<0.01 %"
    digits = 2 if share < 0.01 else 1 if share < 0.1 else 0
    return f"{100 * share:.{digits}f} %"


def gibibytes(count: int) -> str:
    """Returns bytes in GiB, or in MiB below one."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
