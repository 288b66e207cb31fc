# SPDX-License-Identifier: Apache-2.0
"""JSON, with the line of every value; keys given twice are a fault."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.forms.parsed import DEEPEST, FormError, Parsed
from floatwise.plan.problems import Loc

__all__ = ["dump_json", "parse_json"]

_SPACE = re.compile(r"[ \t\n\r]*")
_TEXT_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity|\d+)')


def parse_json(text: str) -> Parsed:
    """Returns the table of a JSON text.

    Raises:
      FormError: The text is not JSON (RFC 8259), is no table, or has a key twice.
    """
    try:
        # NaN and Infinity are no JSON, though Python's reader takes them.
        content = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise _syntax_error(text, error) from None
    except RecursionError:
        raise FormError(1, "not a configuration: its tables are nested too deep") from None
    except ValueError as error:
        raise _number_error(text, error) from None
    if not isinstance(content, dict):
        raise FormError(1, f"got {_kind(content)}, expected a table in braces")
    lines: dict[Loc, int] = {}
    _Places(text, lines).value(_SPACE.match(text, 0).end(), ())  # type: ignore[union-attr]
    return Parsed(content, lines)


def dump_json(values: Mapping[str, Any]) -> str:
    """Returns the table as indented JSON that ends with a newline."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _number_error(text: str, error: ValueError) -> FormError:
    """Returns the fault of NaN, or of digits past what Python's reader takes."""
    most = sys.get_int_max_str_digits()
    for found in _TEXT_OR_NUMBER.finditer(text):
        word = found.group().lstrip("-")
        line = text.count("\n", 0, found.start()) + 1
        if word in ("NaN", "Infinity"):
            return FormError(line, str(error))
        if word[0] != '"' and 0 < most < len(word):
            return FormError(line, f"got a number of {len(word)} digits, which nothing computes with")
    return FormError(1, str(error))


def _no_number(name: str) -> Any:
    raise ValueError(f"not JSON: got {name}, which JSON has no number for")


def _syntax_error(text: str, error: json.JSONDecodeError) -> FormError:
    before, here = text[: error.pos].rstrip(), text[error.pos :].lstrip(" \t\n\r,")
    if here.startswith(("//", "/*", "#")):
        return FormError(error.lineno, "not JSON: it has no comments; delete this one")
    # Python 3.13 points at the comma, older versions at the brace.
    if here.startswith(("}", "]")) and (before.endswith(",") or text[error.pos : error.pos + 1] == ","):
        line = before.count("\n") + 1
        return FormError(line, "not JSON: got a comma before a closing bracket; delete it")
    if error.msg.startswith("Expecting property name"):
        return FormError(error.lineno, "not JSON: keys are in double quotes")
    return FormError(error.lineno, f"not JSON: {error.msg}")


def _kind(content: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(content), "a number")


class _Places:
    """Walks a text that is known to be JSON and notes the line of each value."""

    def __init__(self, text: str, lines: dict[Loc, int]) -> None:
        self.text, self.lines = text, lines
        self.ends = [found.start() for found in re.finditer("\n", text)]
        self.decoder = json.JSONDecoder()

    def value(self, at: int, loc: Loc) -> int:
        """Notes the value at `at`; returns the position after it."""
        if len(loc) > DEEPEST:
            raise FormError(self.line(at), f"not a configuration: tables and lists are nested deeper than {DEEPEST}")
        if loc:
            self.lines.setdefault(loc, self.line(at))
        if self.text[at] == "{":
            return self._members(at, loc)
        if self.text[at] == "[":
            return self._items(at, loc)
        return self.decoder.raw_decode(self.text, at)[1]

    def line(self, at: int) -> int:
        return bisect_left(self.ends, at) + 1

    def _members(self, at: int, loc: Loc) -> int:
        at = self._skip(at + 1)
        seen: set[str] = set()
        while self.text[at] != "}":
            key, after = self.decoder.raw_decode(self.text, at)
            if key in seen:
                raise FormError(self.line(at), f"got the key {key!r} a second time in one table; delete one of them")
            seen.add(key)
            colon = self._skip(after)
            at = self._skip(self.value(self._skip(colon + 1), (*loc, key)))
            if self.text[at] == ",":
                at = self._skip(at + 1)
        return at + 1

    def _items(self, at: int, loc: Loc) -> int:
        at = self._skip(at + 1)
        index = 0
        while self.text[at] != "]":
            at = self._skip(self.value(at, (*loc, index)))
            if self.text[at] == ",":
                at = self._skip(at + 1)
            index += 1
        return at + 1

    def _skip(self, at: int) -> int:
        return _SPACE.match(self.text, at).end()  # type: ignore[union-attr]
