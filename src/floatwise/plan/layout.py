# SPDX-License-Identifier: Apache-2.0
"""How TOML is laid out for a reader: comments above tables, short lists on one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w

__all__ = ["FILE_BEGINS", "FILE_ENDS", "assignments", "inline", "key", "tables"]

FILE_BEGINS = "# Floatwise precision plan"
FILE_ENDS = "# End of the plan."
"""The last line. A file that begins as above and lacks it was cut off, which TOML alone would not show."""

# As the source files of this project, less the indentation; convention.
_WIDTH = 100


def key(name: str) -> str:
    """Returns `name` as a TOML key, in quotes where it needs them."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def inline(value: Any) -> str:
    """Returns `value` as TOML on one line."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{key(k)} = {inline(v)}" for k, v in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(inline(item) for item in value)}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Returns one assignment per value; only lists that are too long for a line take several."""
    return [_assignment(key(name), value) for name, value in values.items()]


def tables(path: str, values: Mapping[str, Any]) -> list[str]:
    """Returns the table named `path` and those inside it, outer before inner, as blocks of text."""
    inner = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    own = {name: value for name, value in values.items() if name not in inner}
    blocks = ["\n".join([f"[{path}]", *assignments(own)])]
    for name, value in inner.items():
        blocks += tables(f"{path}.{key(name)}", value)
    return blocks


def _assignment(name: str, value: Any) -> str:
    line = f"{name} = {inline(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list | tuple):
        return line
    return "\n".join([f"{name} = [", *_filled(inline(item) for item in value), "]"])


def _filled(items: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= _WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"    {item},")
    return lines
