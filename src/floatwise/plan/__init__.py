# SPDX-License-Identifier: Apache-2.0
"""The precision plan: its model, its file, the recipes, module globs and differences."""

from __future__ import annotations

from floatwise.plan.diff import Change, diff_plans
from floatwise.plan.match import escape_module, match_module, policy_for
from floatwise.plan.model import SCHEMA_VERSION, LossScale, ModulePolicy, Plan, Policy, Reductions, Weights
from floatwise.plan.read import load_plan, loads_plan
from floatwise.plan.recipe_table import RECIPES
from floatwise.plan.recipes import recipe
from floatwise.plan.schema import json_schema
from floatwise.plan.write import dumps_plan, save_plan

__all__ = [
    "RECIPES",
    "SCHEMA_VERSION",
    "Change",
    "LossScale",
    "ModulePolicy",
    "Plan",
    "Policy",
    "Reductions",
    "Weights",
    "diff_plans",
    "dumps_plan",
    "escape_module",
    "json_schema",
    "load_plan",
    "loads_plan",
    "match_module",
    "policy_for",
    "recipe",
    "save_plan",
]
