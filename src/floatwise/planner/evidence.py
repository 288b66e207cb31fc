# SPDX-License-Identifier: Apache-2.0
"""The evidence table: what the values of each role would do in the 16-bit formats."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.planner.decision import RoleRow
from floatwise.probe.recording import Recording
from floatwise.stats import TensorSummary, overflow_share, underflow_share

__all__ = ["evidence_rows"]

_ROLES = ("weight", "input", "output", "grad_output", "weight_grad", "update")
_FORMATS = ("float16", "bfloat16")


def evidence_rows(recording: Recording) -> tuple[RoleRow, ...]:
    """Returns one row per role and 16-bit format, without any scaling."""
    rows = []
    for role in _ROLES:
        summaries = recording.role(role)
        if summaries:
            rows += [_row(role, fmt, summaries) for fmt in _FORMATS]
    return tuple(rows)


def _row(role: str, fmt: str, summaries: Mapping[str, TensorSummary]) -> RoleRow:
    worst = max(summaries, key=lambda path: summaries[path].amax)
    whole = list(summaries.values())
    merged = whole[0]
    for summary in whole[1:]:
        merged = merged.merge(summary)
    return RoleRow(
        role=role,
        format=fmt,
        amax=merged.amax,
        worst_module=worst,
        underflow_share=underflow_share(merged, fmt),
        overflow_share=overflow_share(merged, fmt),
        sqnr_db=merged.sqnr_db(fmt),
    )
