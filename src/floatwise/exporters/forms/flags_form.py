# SPDX-License-Identifier: Apache-2.0
"""Command-line flags, as in a launch script: `--bf16 --initial-loss-scale 65536`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.forms.parsed import FormError, Parsed
from floatwise.exporters.forms.shell_words import UnclosedQuotation, shell_words
from floatwise.plan.problems import Loc

__all__ = ["dump_flags", "parse_flags"]


def parse_flags(text: str) -> Parsed:
    """Returns the flags of a text by name, without dashes and with `-` as `_`; a flag without a value is True.

    Values stay texts. Comments, line ends with a backslash, and words that belong to no flag are passed over, so a
    shell script that launches training can be read; flags within quotations count, as in `ARGS="--bf16 --lr 1"`.

    Raises:
      FormError: A quotation is not closed.
    """
    values: dict[str, Any] = {}
    lines: dict[Loc, int] = {}
    name = ""
    try:
        words = shell_words(text)
    except UnclosedQuotation as error:
        raise FormError(error.line, "not flags: No closing quotation") from None
    for line, word in words:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = value if "=" in word else True
            lines[(name,)] = line
        elif name and values[name] is True:
            values[name] = word
            name = ""
    return Parsed(values, lines)


def dump_flags(values: Mapping[str, Any]) -> str:
    """Returns one flag a line, with `_` as `-`; False and None are left out."""
    rows = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        rows.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return "\n".join(rows) + "\n"
