# SPDX-License-Identifier: Apache-2.0
"""Instead of an island: where the rounding could be moved so that it does no harm, as advice for the source."""

from __future__ import annotations

import math

from floatwise.formats import get_format
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.nonfinite import NonFinite

__all__ = ["advise"]

#: Matrix products: an operand scaled by a power of two scales the result by it exactly.
_PRODUCTS = frozenset("mm bmm addmm baddbmm addmv mv dot convolution".split())
_SUMS = frozenset("sum mean cumsum norm linalg_vector_norm var std".split())
#: Bits that the scaled result keeps below the format's largest value: the first batch has not the largest values.
#: As many as the planner asks of a forward pass before a module becomes an island.
_MARGIN_BITS = 3


def advise(found: NonFinite) -> Evidence | None:
    """Returns what to change in the source about an operator that overflows, or None where no advice is known.

    Args:
      found: The operator; `true_amax` tells how far the result is past the format's largest value.
    """
    if found.phase != "forward" or (found.result == "nan" and found.true_amax is None):
        return None
    fmt = get_format(found.format)
    module, before = found.module or "(root)", found.true_amax
    data = {"module": module, "operator": found.operator, "format": found.format, "limit": f"{fmt.max:g}"}
    if found.operator in _SUMS:
        return Evidence("sum_in_float32", data)
    if before is None or not math.isfinite(before) or before <= fmt.max:
        return None
    data["before"] = f"{before:.4g}"
    if found.follower and abs(found.factor) < 1 and before * abs(found.factor) <= fmt.max:
        data |= {"factor": f"{found.factor:.4g}", "after": f"{before * abs(found.factor):.4g}"}
        return Evidence("scale_before_product", data)
    if found.operator in _PRODUCTS:
        bits = math.ceil(math.log2(before / fmt.max)) + _MARGIN_BITS
        return Evidence("scale_product", data | {"divisor": 2**bits, "after": f"{before / 2**bits:.4g}"})
    return Evidence("compute_in_float32", data)
