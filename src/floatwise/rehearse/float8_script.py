# SPDX-License-Identifier: Apache-2.0
"""A float8 plan for training code that knows nothing of it, on machines that cannot multiply float8."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from floatwise.plan import Plan
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_eligible import ModuleFilter
from floatwise.rehearse.float8_use import Float8Use
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer

__all__ = ["Float8Script", "without_float8"]


def without_float8(plan: Plan) -> Plan:
    """Returns the plan for all but the float8 products: bfloat16 takes their place, islands stay.

    A plan with float8 is this one, applied as any other, and `Float8Linears` beside it. Other plans are returned as
    they are.
    """
    if plan.compute_dtype not in FLOAT8_FORMATS:
        return plan
    return plan.model_copy(
        update={
            "recipe": "bf16-mixed" if plan.policy.param_dtype == "float32" else "bf16-master",
            "scaling": None,
            "policy": plan.policy.model_copy(update={"compute_dtype": "bfloat16"}),
        }
    )


class Float8Script(Observer):
    """Converts the linear layers of every model of a tapped script when it first runs.

    It goes beside an `AppliedPlan` of `without_float8(plan)`, which sees to all the rest.

    Args:
      plan: A plan with float8 products.
      module_filter_fn: As in `Float8Linears`; paths are those of the tap.

    Attributes:
      parts: What was converted, by outermost module, in the order in which they first ran.
    """

    def __init__(self, plan: Plan, module_filter_fn: ModuleFilter | None = None) -> None:
        self.plan = plan
        self.parts: list[Float8Linears] = []
        self._filter = module_filter_fn
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._tap: Tap | None = None

    @property
    def use(self) -> Float8Use:
        """What was converted so far, and what its casts have lost."""
        return Float8Use.of(self.parts)

    def install(self, tap: Tap) -> None:
        """Makes conversions end when the tap closes."""
        self._tap = tap
        tap.patches.on_undo(self._remove)

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._tap is not None and root not in self._roots and torch._C._get_tracing_state() is None:
            self._roots.add(root)
            part = Float8Linears(root, self.plan, module_filter_fn=self._filter, name_of=self._tap.paths.of)
            if part.converted or part.left_out:
                self.parts.append(part)
        return args, kwargs

    def _remove(self) -> None:
        for part in self.parts:
            part.remove()
