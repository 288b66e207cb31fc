# SPDX-License-Identifier: Apache-2.0
"""Which plans are worth a rehearsal, given what is decided so far."""

from __future__ import annotations

from collections.abc import Iterable

from floatwise.hardware import Device
from floatwise.plan import Plan, recipe
from floatwise.planner.decision import Decision
from floatwise.planner.rehearsed import Rehearsed

__all__ = ["FLOAT8_RECIPES", "plans_to_rehearse"]

#: Recipes with float8 products.
FLOAT8_RECIPES = ("fp8-tensorwise", "fp8-rowwise")


def plans_to_rehearse(decisions: Iterable[tuple[Decision, Device]], rehearsed: Rehearsed) -> list[Plan]:
    """Returns one plan for each recipe that is chosen somewhere, or could be had there, and was not rehearsed yet.

    A recipe means the same on every device: its islands and its loss scale come from the recorded values.

    Args:
      decisions: What is decided so far, and the target's row.
      rehearsed: What is known already.
    """
    wanted: dict[str, Plan] = {}
    for decision, device in decisions:
        if decision.plan.compute_dtype == "float32":
            continue  # nothing is rounded to 16 bits
        wanted.setdefault(decision.recipe, decision.plan)
        accepted = {verdict.recipe for verdict in decision.verdicts if verdict.status == "accepted"}
        if device.has_matrix("float8_e4m3fn"):
            for name in FLOAT8_RECIPES:
                if name in accepted:
                    wanted.setdefault(name, recipe(name))
        predicted = decision.verdict.predicted
        if predicted is not None and predicted.fits is False and "bf16-master" in accepted:
            wanted.setdefault("bf16-master", recipe("bf16-master"))
    return [plan for name, plan in wanted.items() if not rehearsed.knows(name)]
