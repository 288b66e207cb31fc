# SPDX-License-Identifier: Apache-2.0
"""An exported configuration put into a file that is there, whose other keys stay."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from floatwise.errors import BadInputError
from floatwise.exporters.export import Exported
from floatwise.exporters.forms import FORMS
from floatwise.exporters.forms.shell_words import shell_words
from floatwise.exporters.read import load_settings, read_settings, read_text, settings_of_text
from floatwise.exporters.settings import Settings
from floatwise.exporters.system import System
from floatwise.exporters.version import Version
from floatwise.plan.diff import diff_plans

__all__ = ["has_comments", "merged_text"]

# A `#` that begins a line or follows a space; within a quotation it says too much and no harm is done.
_COMMENT = re.compile(r"(?:^|\s)#")


def has_comments(path: Path, form: str) -> bool:
    """Returns whether a file of a form that knows comments has some; they are lost when it is merged."""
    return form in ("yaml", "flags") and path.is_file() and _COMMENT.search(read_text(path)) is not None


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
    if exported.form == "flags":
        _check_flags_alone(path)
    new = settings_of_text(exported.text, exported.form)
    kept = copy.deepcopy(dict(FORMS[exported.form].parse(read_text(path)).content or old.values))
    for table in system.closed:
        if table and _is_of_precision(system, table):
            _remove(kept, table.split("."))
    # A batch size said otherwise (train_batch_size) would contradict a second one.
    said = any("batch_size" in str(key) for key in old.values)
    values = {key: value for key, value in new.values.items() if not (said and key in system.stand_ins)}
    text = form.dump(_joined(kept, values, system.stand_ins))
    merged = settings_of_text(text, exported.form, f"{path} (merged)")
    reading = read_settings(_as_trainer_reads(merged, system), system, Version.of(exported.version))
    changes = diff_plans(exported.reading.plan, reading.plan)
    if changes:
        rows = "\n".join(f"  {c.path}: {c.before} would become {c.after}" for c in changes)
        raise BadInputError(f"{path}: keys of this file that stay would change what the plan says:\n{rows}")
    return text


def _check_flags_alone(path: Path) -> None:
    """Refuses a launch script, of which only the flags would be left."""
    before = ""
    for line, word in shell_words(read_text(path)):
        if not word.startswith("--") and not (before.startswith("--") and "=" not in before):
            raise BadInputError(
                f"{path}:{line}: got {word!r}, which is no flag: of a script only the flags would be left; write them "
                "to another file with -o, and put that into the command"
            )
        before = word


def _as_trainer_reads(settings: Settings, system: System) -> Settings:
    """Marks a file as part of Trainer's or Accelerate's where it leaves "auto" to them."""
    knobs = system.knobs
    auto = any(value == "auto" and (knob := knobs.get(_path(loc))) and knob.auto for loc, value in settings.leaves())
    return replace(settings, beneath="Trainer or Accelerate") if auto else settings


def _path(loc: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in loc)


def _is_of_precision(system: System, table: str) -> bool:
    """Returns whether a table is mostly of precision keys: `fp16` is, Lightning's `trainer` is not."""
    own = sum(key.startswith(f"{table}.") for key in system.knobs)
    return own > sum(key.startswith(f"{table}.") for key in system.others)


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
