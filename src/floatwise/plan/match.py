# SPDX-License-Identifier: Apache-2.0
"""Module-path globs: which modules an entry of a plan speaks of."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from floatwise.errors import BadInputError

if TYPE_CHECKING:
    from floatwise.plan.model import Plan, Policy

__all__ = ["ROOT", "check_pattern", "escape_module", "match_module", "policy_for"]

ROOT = "(root)"
"""How the outermost module is written; PyTorch's own name for it is the empty string."""

# One item of a segment: a class, or one character. A class may begin with `]`, as in a shell.
_ITEM = re.compile(r"\[(?P<not>!?)(?P<class>\]?[^\]]*)\]|(?P<one>.)", re.DOTALL)
_RANGE = re.compile(r"(?P<first>.)(?:-(?P<last>.))?", re.DOTALL)
_NUMBER_RANGE = re.compile(r"\d+-\d\d+|\d\d+-\d+")


def match_module(pattern: str, path: str) -> bool:
    """Returns whether `pattern` covers the module at `path`.

    `*` stands for any characters of one name, `?` for one character, `[0-9]` for one of a class and `[!0-9]`
    for one outside it; none of them crosses a dot. `**`, alone between dots, stands for any number of names,
    also none, so `encoder.**` covers the encoder and all inside it. `(root)`, or an empty text, is the
    outermost module.

    Args:
      pattern: The glob.
      path: Names joined with dots, as `named_modules` of PyTorch gives them.

    Raises:
      BadInputError: The pattern is malformed.

    >>> match_module("blocks.*.norm[12]", "blocks.11.norm2")
    True
    >>> match_module("*", "blocks.11")
    False
    """
    names = "" if path in ("", ROOT) else f"{path}."
    return _compiled(pattern).fullmatch(names) is not None


def check_pattern(pattern: str) -> None:
    """Raises BadInputError when `pattern` is malformed."""
    _compiled(pattern)


def escape_module(path: str) -> str:
    """Returns the pattern that covers the module at `path` and no other.

    >>> escape_module("heads.[cls]")
    'heads.[[]cls]'
    """
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def policy_for(plan: Plan, module_path: str) -> Policy:
    """Returns the policy of the module at `module_path`: the last entry that covers it, else the default."""
    for entry in reversed(plan.modules):
        if match_module(entry.module, module_path):
            return entry.policy
    return plan.policy


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern in ("", ROOT):
        return re.compile("")
    # Every name is followed by a dot, so that `**` may stand for no name at all.
    segments = [_segment(segment, pattern) for segment in _split(pattern)]
    return re.compile("".join(segments), re.DOTALL)


def _split(pattern: str) -> list[str]:
    """Splits at dots, with neighbouring `**` made one: it means the same and backtracks less."""
    segments: list[str] = []
    for segment in pattern.split("."):
        if segment != "**" or segments[-1:] != ["**"]:
            segments.append(segment)
    return segments


def _segment(segment: str, pattern: str) -> str:
    if segment == "**":
        return r"(?:[^.]+\.)*"
    if not segment:
        raise _malformed(pattern, "there is no name between two dots, or before the first, or after the last")
    if "**" in segment:
        raise _malformed(pattern, f"`**` stands alone between dots: write `*` in {segment!r}")
    return "".join(_item(item, pattern) for item in _ITEM.finditer(segment)) + r"\."


def _item(item: re.Match[str], pattern: str) -> str:
    one = item["one"]
    if one == "*":
        return "[^.]*"
    if one == "?":
        return "[^.]"
    if one == "[":
        raise _malformed(pattern, "a `[` has no `]` within its name; for a bracket of the name itself write `[[]`")
    if one:
        return re.escape(one)
    return _class(item["not"], item["class"], pattern)


def _class(negated: str, members: str, pattern: str) -> str:
    if not members:
        raise _malformed(pattern, "`[]` is empty")
    if _NUMBER_RANGE.fullmatch(members):
        raise _malformed(
            pattern,
            f"[{members}] stands for one character; for 0 to 11 write two entries, `[0-9]` and `1[01]`",
        )
    ranges = ""
    for item in _RANGE.finditer(members):
        first, last = item["first"], item["last"] or item["first"]
        if first > last:
            raise _malformed(pattern, f"the range {item[0]!r} runs backwards")
        ranges += f"{re.escape(first)}-{re.escape(last)}"
    # A range or a negation may span the dot, which nothing within a name covers.
    return rf"(?!\.)[{'^' if negated else ''}{ranges}]"


def _malformed(pattern: str, why: str) -> BadInputError:
    return BadInputError(f"got the module glob {pattern!r}: {why}")
