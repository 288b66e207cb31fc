# SPDX-License-Identifier: Apache-2.0
"""Small pieces of Python source that exporters write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from floatwise.exporters.settings import Dotted

__all__ = ["call_text", "torch_dtype", "value_text"]


def torch_dtype(name: str) -> Dotted:
    """Returns the name of a torch dtype in source: `torch.bfloat16`."""
    return Dotted(f"torch.{name}")


def value_text(value: Any) -> str:
    """Returns a value as source: names as they are, texts in double quotes, else Python's own form."""
    if isinstance(value, Dotted):
        return str(value)
    if isinstance(value, str):
        # JSON's escapes are Python's, too; what a reader would not see as it is, such as U+202E, becomes one.
        return "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
            for c in json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, list | tuple):
        inner = ", ".join(value_text(item) for item in value)
        return (
            f"({inner},)"
            if isinstance(value, tuple) and len(value) == 1
            else f"({inner})"
            if isinstance(value, tuple)
            else f"[{inner}]"
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f"{value_text(k)}: {value_text(v)}" for k, v in value.items()) + "}"
    return repr(value)


def call_text(
    name: str, arguments: Mapping[str, Any], *positional: Any, comments: Mapping[str, str] | None = None
) -> str:
    """Returns a call with one argument a line.

    Args:
      name: What is called.
      arguments: Arguments by name.
      *positional: Arguments before them.
      comments: A comment at the end of an argument's line, by its name.
    """
    lines = [f"{value_text(value)}," for value in positional]
    for key, value in arguments.items():
        comment = (comments or {}).get(key)
        lines.append(f"{key}={value_text(value)}," + (f"  # {comment}" if comment else ""))
    return f"{name}(\n" + "".join(f"    {line}\n" for line in lines) + ")"
