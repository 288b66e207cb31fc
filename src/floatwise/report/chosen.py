# SPDX-License-Identifier: Apache-2.0
"""The verdict that a decision follows."""

from __future__ import annotations

from floatwise.planner.decision import Decision, Verdict

__all__ = ["chosen_verdict"]


def chosen_verdict(decision: Decision) -> Verdict | None:
    """Returns the verdict on the recommended recipe; None where the decision lists none."""
    return next((verdict for verdict in decision.verdicts if verdict.recipe == decision.recipe), None)
