# SPDX-License-Identifier: Apache-2.0
"""TOML with line numbers: parsing, and on which line each key stands."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from floatwise.plan.problems import Loc

__all__ = ["TomlSyntaxError", "line_of", "lines_of_keys", "parse_toml"]

# By name, because type checkers read this as Python 3.10 where only the backport exists, and the backport is
# installed only there.
_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

_POSITION = re.compile(r" \(at (?:line (?P<line>\d+), column \d+|end of document)\)$")

# What the last line of a statement over several lines must have (TOML 1.0: lists and multi-line strings).
_CLOSING = ("]", "}", '"""', "'''")


class TomlSyntaxError(ValueError):
    """Text that is not TOML.

    Attributes:
      line: Line of the fault, from 1.
      what: What is wrong there.
    """

    def __init__(self, line: int, what: str) -> None:
        self.line, self.what = line, what
        super().__init__(line, what)


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the content of a TOML text.

    Raises:
      TomlSyntaxError: The text is not TOML.
    """
    try:
        content: dict[str, Any] = _toml.loads(text)
    except RecursionError:
        raise TomlSyntaxError(1, "lists or tables are nested too deep") from None
    # Broader than TOMLDecodeError: integers of very many digits raise a plain ValueError.
    except ValueError as error:
        message = str(error)
        position = _POSITION.search(message)
        end = len(text.rstrip().split("\n"))
        what = _POSITION.sub("", message)
        if position and position["line"]:
            raise TomlSyntaxError(int(position["line"]), what) from None
        raise TomlSyntaxError(end, f"{what}; the text ends too early") from None
    return content


def line_of(loc: Loc, lines: dict[Loc, int]) -> int:
    """Returns the line of `loc`, or of the innermost table around it that is there, or 1."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in lines:
            return lines[loc[:length]]
    return 1


def lines_of_keys(text: str) -> dict[Loc, int]:
    """Returns the line, from 1, on which each table and key of a valid TOML text is written.

    Keys inside an inline value have the line on which its statement begins.
    """
    lines: dict[Loc, int] = {}
    table: Loc = ()
    lengths: dict[Loc, int] = {}
    for line, statement, content in _statements(text):
        if statement.startswith("["):
            table = _enter(content, statement.startswith("[["), lengths)
            for length in range(1, len(table) + 1):
                lines.setdefault(table[:length], line)
        else:
            for loc in _keys(content, table):
                lines.setdefault(loc, line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields every header and assignment: its first line, its text and its content alone.

    A statement over several lines is no TOML until its last line is there, so the parser itself says where
    statements end.
    """
    pending: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        pending.append(line)
        if len(pending) > 1 and not any(mark in line for mark in _CLOSING):
            continue
        try:
            content = parse_toml("\n".join(pending) + "\n")
        except TomlSyntaxError:
            continue
        if content:
            yield number - len(pending) + 1, pending[0].strip(), content
        pending = []


def _enter(content: dict[str, Any], is_list: bool, lengths: dict[Loc, int]) -> Loc:
    """Returns the place of the table a header opens, given the lengths of the lists of tables so far."""
    names: list[str] = []
    inner: Any = content
    while isinstance(inner, dict) and inner:
        ((name, inner),) = inner.items()
        names.append(name)
    loc: Loc = ()
    for i, name in enumerate(names):
        loc = (*loc, name)
        if is_list and i == len(names) - 1:
            lengths[loc] = lengths.get(loc, 0) + 1
        if loc in lengths:
            loc = (*loc, lengths[loc] - 1)
    return loc


def _keys(content: Any, loc: Loc) -> Iterator[Loc]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*loc, key)
        yield from _keys(value, (*loc, key))
