# SPDX-License-Identifier: Apache-2.0
"""Reading a plan file: either the plan, or every fault with its line."""

from __future__ import annotations

import os
import reprlib
from pathlib import Path
from typing import Any

from floatwise.errors import BadFileError, nearest_names
from floatwise.plan.layout import FILE_BEGINS, FILE_ENDS
from floatwise.plan.model import SCHEMA_VERSION, Plan
from floatwise.plan.problems import PlanProblems, Problem, dotted
from floatwise.plan.recipe_table import RECIPES
from floatwise.plan.toml_source import TomlSyntaxError, line_of, lines_of_keys, parse_toml

__all__ = ["load_plan", "loads_plan"]

# A plan is a few KiB; past this it is a checkpoint or a data set given by mistake. Convention.
_MAX_BYTES = 4 * 2**20

_MAKE_ONE = "`floatwise plan` writes one"

# First bytes of the files most often given by mistake, from each format's specification.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, such as a recording or a checkpoint",
    b"\x1f\x8b": "a gzip archive",
    b"\x93NUMPY": "a NumPy array",
    b"\x80": "a pickle",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"{": "JSON, such as the configuration of another system",
}


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Returns the plan in the file at `path`.

    Raises:
      BadFileError: There is no such file, or it is no plan; every fault begins a line with `path:line:`.
    """
    source = os.fspath(path)
    data = _read(Path(path), source)
    for start, what in _FOREIGN.items():
        if data.lstrip().startswith(start):
            raise BadFileError(f"{source}:1: this is {what}, not a plan; {_MAKE_ONE}")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise BadFileError(f"{source}:{line}: this is a binary file, not a plan; {_MAKE_ONE}")
    try:
        # With or without the byte order mark that some Windows editors write.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = data[error.start : error.end].hex(" ")
        raise BadFileError(f"{source}:{line}: got the byte {got}, which is not UTF-8; save the file as UTF-8") from None
    return loads_plan(text, source)


def loads_plan(text: str, source: str = "<string>") -> Plan:
    """Returns the plan written in `text`.

    Args:
      text: TOML, as `dumps_plan` writes it or by hand.
      source: What messages call the text.

    Raises:
      BadFileError: The text is no plan; every fault begins a line with `source:line:`.
    """
    if not text.strip():
        raise BadFileError(f"{source}:1: the file is empty; {_MAKE_ONE}")
    cut = _cut_off(text)
    if cut:
        raise _bad_file(source, cut)  # whatever else is wrong follows from that
    try:
        content = parse_toml(text)
    except TomlSyntaxError as error:
        raise _bad_file(source, [(error.line, f"not TOML: {error.what}")]) from None
    if not content.keys() & Plan.model_fields.keys():
        raise BadFileError(f"{source}:1: this is no plan: none of its keys is a plan's; {_MAKE_ONE}")
    problems = list(_version_problems(content))
    if not problems:
        try:
            plan = Plan(**content)
        except PlanProblems as error:
            problems += error.problems
        if "schema_version" not in content:
            problems.append(Problem(("schema_version",), f"missing; write schema_version = {SCHEMA_VERSION}"))
        if not problems:
            return plan
    lines = lines_of_keys(text)
    faults = [(line_of(p.loc, lines), f"{dotted(p.loc)}: {p.text}") for p in problems]
    raise _bad_file(source, faults)


def _read(path: Path, source: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadFileError(f"{source}: there is no such file; {_suggestion(path)}") from None
    except IsADirectoryError:
        raise BadFileError(f"{source}:1: this is a directory; name the plan file in it") from None
    except (OSError, ValueError) as error:
        # A ValueError comes from a path with a null character.
        why = getattr(error, "strerror", None) or error
        raise BadFileError(f"{source}:1: cannot be read: {why}") from None
    if len(data) > _MAX_BYTES:
        raise BadFileError(f"{source}:1: larger than {_MAX_BYTES >> 20} MiB, which no plan is; {_MAKE_ONE}")
    return data


def _suggestion(path: Path) -> str:
    if str(path) in RECIPES:
        return f"{str(path)!r} is the name of a recipe: give --recipe {path}, or in Python recipe({str(path)!r})"
    try:
        names = nearest_names(path.name, (p.name for p in path.parent.glob("*.toml")))
    except OSError:
        names = []
    return f"did you mean {' or '.join(names)}?" if names else _MAKE_ONE


def _cut_off(text: str) -> list[tuple[int, str]]:
    """Finds that the end of a written plan is missing, which may still be valid TOML."""
    lines = text.rstrip().split("\n")
    if not text.startswith(FILE_BEGINS) or FILE_ENDS in (line.rstrip() for line in lines):
        return []
    what = (
        f"the file is cut off: its last line {FILE_ENDS!r} is missing; restore the file, "
        "or add the line if you took it away and nothing else is missing"
    )
    return [(len(lines), what)]


def _version_problems(content: dict[str, Any]) -> list[Problem]:
    """Looks for a version from the future, whose keys this version cannot judge."""
    version = content.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version <= SCHEMA_VERSION:
        return []
    text = (
        f"got {reprlib.repr(version)}, but this Floatwise reads up to {SCHEMA_VERSION}: the plan was written "
        "by a newer Floatwise; upgrade with `pip install --upgrade floatwise`"
    )
    return [Problem(("schema_version",), text)]


def _bad_file(source: str, faults: list[tuple[int, str]]) -> BadFileError:
    ordered = sorted(faults, key=lambda fault: fault[0])
    return BadFileError("\n".join(f"{source}:{line}: {text}" for line, text in ordered))
