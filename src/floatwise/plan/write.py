# SPDX-License-Identifier: Apache-2.0
"""Writing a plan file as a person would want to read it, all of it or nothing."""

from __future__ import annotations

import os
from typing import Any

from floatwise.files import write_whole
from floatwise.plan.layout import FILE_BEGINS, FILE_ENDS, assignments, tables
from floatwise.plan.model import Plan

__all__ = ["dumps_plan", "save_plan"]

_HEADER = f"""\
{FILE_BEGINS}: which number formats a training run uses, where, and why.
# Train under it:  floatwise run --plan THIS_FILE YOUR_SCRIPT
# Edit what you like: mistakes are refused with their line and what to write instead."""

_COMMENTS = {
    "policy": "The formats of every module that no [[modules]] entry names: weights, arithmetic, outputs.",
    "modules": "Modules with formats of their own; `*` is one name, `**` any number, later entries win.",
    "weights": "How 16-bit weights keep float32 accuracy: none, float32, split, kahan or stochastic.",
    "loss_scale": "The loss is multiplied by this so that small gradients survive float16.",
    "reductions": "The formats of gradient sums over processes and over batches, and of buffers.",
    "evidence": "What the plan was decided from; for the reader, nothing here changes a run.",
}


def dumps_plan(plan: Plan) -> str:
    """Returns the plan as TOML; `loads_plan` makes the equal plan of it.

    Raises:
      PlanError: The plan was made without checks and is wrong, so that nothing could read the text.
    """
    values = Plan(**plan.model_dump()).model_dump(exclude_none=True)
    evidence = values.pop("evidence")
    modules = values.pop("modules")
    own = {k: v for k, v in values.items() if not isinstance(v, dict) and v != ""}
    blocks = [_HEADER, "\n".join(assignments(own))]
    for name in ("policy", "modules", "weights", "loss_scale", "reductions"):
        if name == "modules":
            blocks += _module_blocks(modules)
        elif name in values:
            blocks += _commented(name, tables(name, values[name]))
    if evidence:
        blocks += _commented("evidence", tables("evidence", evidence))
    return "\n\n".join([*blocks, FILE_ENDS]) + "\n"


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the plan to `path`, which holds either the old file or the whole new one at any time.

    Raises:
      PlanError: The plan is wrong; see `dumps_plan`.
      BadInputError: The file cannot be written there.
    """
    write_whole(path, dumps_plan(plan), "the plan")


def _commented(name: str, blocks: list[str]) -> list[str]:
    return [f"# {_COMMENTS[name]}\n{blocks[0]}", *blocks[1:]]


def _module_blocks(modules: list[dict[str, Any]]) -> list[str]:
    blocks = []
    for values in modules:
        entry = {k: values[k] for k in ("module", "reason", "policy") if values[k] != "" or k == "module"}
        blocks.append("\n".join(["[[modules]]", *assignments(entry)]))
    return _commented("modules", blocks) if blocks else []
