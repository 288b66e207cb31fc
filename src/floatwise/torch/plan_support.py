# SPDX-License-Identifier: Apache-2.0
"""What of a plan this runtime applies, and reading a plan from whatever names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from floatwise.errors import BadInputError, PlanError, UnknownNameError
from floatwise.plan import RECIPES, Plan, Policy, load_plan, recipe

__all__ = ["APPLIED_RECIPES", "TORCH_DTYPES", "as_plan", "check_plan"]

#: The formats this runtime computes in.
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: The recipes that can be given to `prepare` as they are.
APPLIED_RECIPES = ("bf16-master", "bf16-mixed", "fp16-master", "fp16-mixed", "fp32", "tf32")


def as_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Returns the plan itself, the recipe of that name, or the plan in that file, checked by `check_plan`.

    Raises:
      BadInputError: It is none of these.
      UnknownNameError: A name that is neither a recipe nor a file.
      BadFileError: The file is no plan.
      PlanError: This runtime cannot apply the plan.
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
    """Returns `plan` when this runtime applies all of it.

    Raises:
      PlanError: It asks for float8, for gradient sums over batches or buffers in 16 bits, or for modules that
        compute lower than a float32 default.
    """
    fault = next(_unsupported(plan), None)
    if fault:
        what, instead = fault
        applied = ", ".join(APPLIED_RECIPES)
        raise PlanError(f"got a plan of recipe {plan.recipe!r} with {what}; applied here: {applied}\n{instead}")
    return plan


def _unsupported(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields what of the plan is not applied, and what to use instead."""
    for where, policy in [("", plan.policy), *((f" of {m.module!r}", m.policy) for m in plan.modules)]:
        if policy.compute_dtype not in TORCH_DTYPES:
            yield (
                f"compute_dtype {policy.compute_dtype!r}{where}",
                "use 'bf16-mixed'; for float8 products convert the model with "
                "torchao.float8.convert_to_float8_training",
            )
        if policy.param_dtype != "float32" and policy.compute_dtype == "float32":
            yield (
                f"param_dtype {policy.param_dtype!r} and compute_dtype 'float32'{where}",
                "write param_dtype = 'float32' there: 16-bit weights are multiplied in 16 bits",
            )
    # Gradients are summed over processes in any format (`distributed`), and over batches in float32, as are buffers.
    for key in ("accumulate_dtype", "buffer_dtype"):
        dtype = getattr(plan.reductions, key)
        if dtype != "float32":
            yield f"reductions.{key} {dtype!r}", f"write {key} = 'float32' in [reductions]"
    if plan.compute_dtype == "float32":
        yield from _lower_modules(plan)


def _lower_modules(plan: Plan) -> Iterator[tuple[str, str]]:
    lower = {m.policy.compute_dtype: m.module for m in plan.modules if _computes_lower(m.policy)}
    for dtype, module in lower.items():
        yield (
            f"compute_dtype 'float32' and {dtype!r} for {module!r}",
            (f"write {dtype!r} as the default compute_dtype, and an entry for each float32 module"),
        )


def _computes_lower(policy: Policy) -> bool:
    return policy.compute_dtype != "float32"
