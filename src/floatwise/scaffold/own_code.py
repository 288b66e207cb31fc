# SPDX-License-Identifier: Apache-2.0
"""What of a plan `train.py` does itself, so that the framework's configuration need not hold it."""

from __future__ import annotations

from floatwise.plan import LossScale, Plan

__all__ = ["without_own_code"]


def without_own_code(plan: Plan, *, has_own_scale: bool = True) -> Plan:
    """Returns the plan without its islands and, where `train.py` sets it, with the usual loss scale."""
    changes: dict[str, object] = {"modules": ()}
    if has_own_scale and plan.loss_scale is not None:
        changes["loss_scale"] = LossScale()
    return Plan.model_validate({**dict(plan), **changes})
