# SPDX-License-Identifier: Apache-2.0
"""A plan's module glob as a regular expression for source that runs without Floatwise."""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatwise.exporters.python_text import value_text
from floatwise.plan.match import ROOT, check_pattern

__all__ = ["glob_regex", "literal_glob", "regex_text"]

_ITEM = re.compile(r"\[(?P<not>!?)(?P<class>\]?[^\]]*)\]|(?P<one>.)", re.DOTALL)
_RANGE = re.compile(r"(?P<first>.)(?:-(?P<last>.))?", re.DOTALL)


def glob_regex(pattern: str, separator: str = ".") -> str:
    """Returns the regular expression that fully matches the paths a glob covers, as `floatwise.plan.match` defines it.

    Args:
      pattern: The glob of a plan, its names joined with dots.
      separator: The one character between the names of the paths to match; `/` for Keras.

    Raises:
      BadInputError: The glob is malformed.

    >>> glob_regex("blocks.*.norm[12]", "/")
    'blocks/[^/]+/norm[12]'
    """
    check_pattern(pattern)
    if pattern in ("", ROOT):
        return ""
    sep = re.escape(separator)
    segments = pattern.split(".")
    parts = [_segment(s, separator) for s in segments if s != "**"]
    if len(parts) == len(segments):
        return sep.join(parts)
    return _with_any_depth(segments, separator)


def regex_text(regex: str) -> str:
    """Returns an expression as Python source: a raw text where its characters allow it."""
    plain = regex.isprintable() and '"' not in regex and not regex.endswith("\\")
    return f'r"{regex}"' if plain and "\\" in regex else value_text(regex) if plain else repr(regex)


def literal_glob(pattern: str) -> bool:
    """Returns whether a glob covers one path only: it has no wildcard."""
    return not re.search(r"[*?\[]", pattern)


def _with_any_depth(segments: Iterable[str], separator: str) -> str:
    """Returns the expression of a glob with `**`, which stands for any number of names, also none.

    Names before the first `**` are followed by it, names after it are led by a separator, so that no separator is
    left over where it stands for nothing.
    """
    sep, other = re.escape(separator), f"[^{re.escape(separator)}]"
    text, started = "", False
    open_start = False
    for segment in segments:
        if segment == "**":
            if open_start or text.endswith(")*"):
                continue
            if started:
                text += f"(?:{sep}{other}+)*"
            else:
                text, open_start = f"(?:{other}+{sep})*", True
            continue
        name = _segment(segment, separator)
        text += name if open_start or not started else f"{sep}{name}"
        started, open_start = True, False
    if open_start:
        return f"(?:{other}+(?:{sep}{other}+)*)?"
    return text


def _segment(segment: str, separator: str) -> str:
    if segment == "*":
        return f"[^{re.escape(separator)}]+"
    return "".join(_item(item, separator) for item in _ITEM.finditer(segment))


def _item(item: re.Match[str], separator: str) -> str:
    sep = re.escape(separator)
    one = item["one"]
    if one == "*":
        return f"[^{sep}]*"
    if one == "?":
        return f"[^{sep}]"
    if one:
        return re.escape(one)
    ranges = ""
    for found in _RANGE.finditer(item["class"]):
        first, last = re.escape(found["first"]), re.escape(found["last"] or found["first"])
        ranges += first if first == last else f"{first}-{last}"
    simple = not item["not"] and re.fullmatch(r"(?:\w(?:-\w)?)+", item["class"])
    guard = "" if simple else rf"(?!{sep})"
    return f"{guard}[{'^' if item['not'] else ''}{ranges}]"
