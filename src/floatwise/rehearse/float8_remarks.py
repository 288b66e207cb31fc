# SPDX-License-Identifier: Apache-2.0
"""What is worth knowing about the float8 products of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterable

from floatwise.plan import Plan
from floatwise.rehearse.comparison_rows import LARGEST_ZERO_SHARE
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.float8_scaling import get_float8_scaling
from floatwise.rehearse.float8_use import Float8Use

__all__ = ["float8_advice", "float8_remarks"]


def float8_remarks(plan: Plan, use: Float8Use | None) -> list[Evidence]:
    """Returns which layers are left out, whose rows hardware refuses, and where small values vanish.

    Args:
      plan: The plan.
      use: What the first batch showed; None under a plan without float8 products.
    """
    if use is None or plan.scaling is None:
        return []
    remarks = []
    if use.left_out:
        data = {
            "converted": len(use.converted),
            "total": len(use.converted) + len(use.left_out),
            "module": use.left_out[0].path or "(root)",
        }
        remarks.append(Evidence("float8_layers", data))
    for path, rows in sorted(use.uneven_rows.items())[:1]:
        multiple = get_float8_scaling(plan.scaling).multiple
        remarks.append(Evidence("float8_uneven_rows", {"module": path, "rows": rows, "multiple": multiple}))
    if use.counts:
        (path, role), worst = max(use.counts.items(), key=lambda item: item[1].underflow_share)
        if worst.underflow_share > LARGEST_ZERO_SHARE:
            data = {"module": path, "role": role, "share": f"{worst.underflow_share:.0%}", "amax": f"{worst.amax:.4g}"}
            remarks.append(Evidence("float8_vanishes", data))
    return remarks


def float8_advice(plan: Plan, remarks: Iterable[Evidence]) -> Evidence | None:
    """Returns what to do about values that vanish beside larger ones, or None where none do.

    Args:
      plan: The plan that did not pass.
      remarks: Those of its comparison.
    """
    code = "scale_by_rows" if plan.scaling == "tensorwise" else "bound_outliers"
    return next((Evidence(code, r.data) for r in remarks if r.code == "float8_vanishes"), None)
