# SPDX-License-Identifier: Apache-2.0
"""`floatwise diff`: a plan against a configuration, or two configurations of any systems."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.configurations import read_configurations
from floatwise.cli.unicode import can_print_unicode
from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.plan import RECIPES, Plan, diff_plans, load_plan, recipe
from floatwise.report import changes_to_json, render_changes

__all__ = ["diff"]

_RECORDS = tuple(path for loss in RECORD_LOSSES for path in loss.paths)


def diff(
    a: Annotated[str, typer.Argument(help="A plan file, a recipe, or another system's configuration.")],
    b: Annotated[str, typer.Argument(help="What to compare it with; likewise.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show what differs in training between two plans or configurations; exit code 1 when something does."""
    first, second = _plan(a), _plan(b)
    changes = [
        change for change in diff_plans(first, second) if not any(fnmatchcase(change.path, glob) for glob in _RECORDS)
    ]
    if as_json:
        values = {"a": a, "b": b, "changes": changes_to_json(changes)}
        print(json.dumps(values, ensure_ascii=not can_print_unicode(), indent=2))
    else:
        render_changes(changes, a, b, Console())
    raise typer.Exit(1 if changes else 0)


def _plan(name: str) -> Plan:
    if name in RECIPES and not Path(name).exists():
        return recipe(name)
    if Path(name).suffix == ".toml":
        return load_plan(name)
    return read_configurations([Path(name)])[-1].reading.plan
