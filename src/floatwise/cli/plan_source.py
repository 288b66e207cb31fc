# SPDX-License-Identifier: Apache-2.0
"""The plan that a subcommand works on: a file, a recipe, or precision.toml."""

from __future__ import annotations

from pathlib import Path

from floatwise.cli.plan_files import DEFAULT_PLAN
from floatwise.errors import BadInputError
from floatwise.plan import Plan, load_plan, recipe

__all__ = ["plan_from"]


def plan_from(path: Path | None, recipe_name: str | None) -> Plan:
    """Returns the plan of a file or of a recipe; of precision.toml when neither is given.

    Raises:
      BadInputError: Both are given, or neither and there is no precision.toml.
    """
    if path is not None and recipe_name is not None:
        raise BadInputError("got both --plan and --recipe; give one of them")
    if recipe_name is not None and recipe_name.endswith(".toml"):
        raise BadInputError(f"got --recipe {recipe_name}, which names a plan file: give --plan {recipe_name}")
    if recipe_name is not None:
        return recipe(recipe_name)
    if path is None and not DEFAULT_PLAN.exists():
        raise BadInputError(
            f"there is no {DEFAULT_PLAN} here: `floatwise plan train.py` writes one; or give --plan or --recipe"
        )
    return load_plan(path or DEFAULT_PLAN)
