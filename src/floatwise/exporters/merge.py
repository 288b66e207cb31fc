# SPDX-License-Identifier: Apache-2.0
"""An exported configuration put into a file that is there, whose other keys stay."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floatwise.errors import BadInputError
from floatwise.exporters.export import Exported
from floatwise.exporters.forms import FORMS
from floatwise.exporters.read import load_settings, read_settings, settings_of_text
from floatwise.exporters.system import System
from floatwise.exporters.version import Version
from floatwise.plan.diff import diff_plans

__all__ = ["merged_text"]


def merged_text(path: Path, exported: Exported, system: System) -> str:
    """Returns the content of the file at `path` with the precision keys of `exported`.

    Tables that hold nothing but precision keys are replaced whole; all else that is written replaces or joins what
    is there, but for `System.stand_ins` such as a batch size.

    Raises:
      BadFileError: The file cannot be read.
      BadInputError: The form has no keys to merge, or a key that stays changes what the plan says.
    """
    form = FORMS[exported.form]
    if form.dump is None:
        raise BadInputError(f"{path}: Python source cannot be merged; write to another file with -o")
    old = load_settings(path, exported.form)
    new = settings_of_text(exported.text, exported.form)
    kept = copy.deepcopy(dict(old.values))
    for table in system.closed:
        if table:
            _remove(kept, table.split("."))
    text = form.dump(_joined(kept, new.values, system.stand_ins))
    merged = settings_of_text(text, exported.form, str(path))
    reading = read_settings(merged, system, Version.of(exported.version))
    changes = diff_plans(exported.reading.plan, reading.plan)
    if changes:
        rows = "\n".join(f"  {c.path}: {c.before} would become {c.after}" for c in changes)
        raise BadInputError(f"{path}: keys of this file that stay would change what the plan says:\n{rows}")
    return text


def _joined(
    old: Mapping[str, Any], new: Mapping[str, Any], stand_ins: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:
    joined = dict(old)
    for key, value in new.items():
        here = f"{path}{key}"
        before = joined.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            joined[key] = _joined(before, value, stand_ins, f"{here}.")
        elif key not in joined or here not in stand_ins or value != stand_ins[here]:
            joined[key] = value
    return joined


def _remove(table: dict[str, Any], keys: list[str]) -> None:
    inner: Any = table
    for key in keys[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(keys[-1], None)
