# SPDX-License-Identifier: Apache-2.0
"""What of a plan Keras can be told, and reading a plan from whatever names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from floatwise.errors import BadInputError, PlanError, UnknownNameError
from floatwise.plan import RECIPES, Plan, load_plan, recipe

__all__ = ["APPLIED_RECIPES", "POLICY_NAMES", "as_plan", "check_plan"]

POLICY_NAMES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
"""Keras' policy of each compute format, with float32 variables (keras/dtype_policies/dtype_policy.py, 3.15.1)."""

APPLIED_RECIPES = ("bf16-mixed", "fp16-mixed", "fp32", "tf32")
"""The recipes that can be applied as they are."""


def as_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Returns the plan itself, the recipe of that name, or the plan in that file, checked by `check_plan`.

    Raises:
      BadInputError: It is none of these.
      UnknownNameError: A name that is neither a recipe nor a file.
      BadFileError: The file is no plan.
      PlanError: Keras cannot be told the plan.
    """
    if isinstance(plan, Plan):
        return check_plan(plan)
    if not isinstance(plan, str | os.PathLike) or not os.fspath(plan):
        raise BadInputError(
            f"got {plan!r} as the plan; expected a recipe such as 'bf16-mixed', the path of a plan file, or a Plan"
        )
    name = os.fspath(plan)
    if name in RECIPES:
        return check_plan(recipe(name))
    if Path(name).suffix == ".toml" or Path(name).exists():
        return check_plan(load_plan(Path(name)))
    raise UnknownNameError("recipe", name, RECIPES, hint="or give the path of a plan file, which ends in .toml")


def check_plan(plan: Plan) -> Plan:
    """Returns `plan` when Keras can be told all of it.

    Raises:
      PlanError: It asks for float8, for weights in 16 bits, or for sums or buffers in 16 bits.
    """
    fault = next(_unsupported(plan), None)
    if fault:
        what, instead = fault
        applied = ", ".join(APPLIED_RECIPES)
        raise PlanError(f"got a plan of recipe {plan.recipe!r} with {what}; applied to Keras: {applied}\n{instead}")
    return plan


def _unsupported(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields what of the plan is not applied, and what to use instead."""
    for where, policy in [("", plan.policy), *((f" of {m.module!r}", m.policy) for m in plan.modules)]:
        if policy.compute_dtype not in POLICY_NAMES:
            yield (
                f"compute_dtype {policy.compute_dtype!r}{where}",
                "use 'bf16-mixed', and model.quantize(\"float8\") on the built model for float8 products",
            )
        if policy.param_dtype != "float32":
            yield (
                f"param_dtype {policy.param_dtype!r}{where}",
                "write param_dtype = 'float32': Keras has no master weights for variables of 16 bits, whose small "
                "updates would be lost",
            )
    for key in ("reduce_dtype", "accumulate_dtype", "buffer_dtype"):
        dtype = getattr(plan.reductions, key)
        if dtype != "float32":
            yield f"reductions.{key} {dtype!r}", f"write {key} = 'float32' in [reductions]: Keras sums in float32"
