# SPDX-License-Identifier: Apache-2.0
"""YAML as PyYAML's safe loader reads it, with the line of every value; keys given twice are a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from floatwise.exporters.forms.parsed import FormError, Parsed
from floatwise.plan.problems import Loc

__all__ = ["dump_yaml", "parse_yaml"]


def parse_yaml(text: str) -> Parsed:
    """Returns the table of a YAML text. As in YAML 1.1, an unquoted `no` is false.

    Raises:
      FormError: The text is not YAML, is no table, has a key twice, or asks for Python objects.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FormError(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormError(1, f"not YAML: {error}") from None
    if not isinstance(content, dict):
        raise FormError(1, "got no table; expected lines of the form `key: value`")
    lines: dict[Loc, int] = {}
    _note(node, (), lines)
    return Parsed(content, lines)


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Returns the table as YAML in the given order; texts that YAML would read as something else are quoted."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, default_flow_style=False)


def _note(node: Any, loc: Loc, lines: dict[Loc, int]) -> None:
    if loc:
        lines.setdefault(loc, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key_node, value_node in node.value:
            key = key_node.value
            if key in seen:
                raise FormError(
                    key_node.start_mark.line + 1, f"got the key {key!r} a second time in one table; delete one of them"
                )
            seen.add(key)
            lines.setdefault((*loc, key), key_node.start_mark.line + 1)
            _note(value_node, (*loc, key), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note(item, (*loc, index), lines)
