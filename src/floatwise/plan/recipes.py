# SPDX-License-Identifier: Apache-2.0
"""A named starting plan."""

from __future__ import annotations

from typing import Any

from floatwise.errors import UnknownNameError
from floatwise.plan.model import LossScale, Plan, Policy, Weights
from floatwise.plan.recipe_table import RECIPE_TABLE, RECIPES

__all__ = ["recipe"]


def recipe(name: str, **overrides: Any) -> Plan:
    """Returns the plan a recipe stands for.

    Args:
      name: One of `RECIPES`.
      **overrides: Values of the plan's own fields in place of the recipe's.

    Raises:
      UnknownNameError: There is no such recipe.
      PlanError: The overrides are wrong, or contradict the recipe.

    >>> recipe("bf16-mixed").compute_dtype
    'bfloat16'
    """
    row = RECIPE_TABLE.get(name)
    if row is None:
        raise UnknownNameError("recipe", name, RECIPES)
    values: dict[str, Any] = {
        "recipe": name,
        "policy": Policy(param_dtype=row.param_dtype, compute_dtype=row.compute_dtype),
        "weights": Weights(master=row.master),
        "loss_scale": LossScale() if row.compute_dtype == "float16" else None,
        "float32_matmul": row.float32_matmul,
        "scaling": row.scaling,
    }
    return Plan(**{**values, **overrides})
