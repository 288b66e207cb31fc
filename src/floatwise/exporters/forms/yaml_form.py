# SPDX-License-Identifier: Apache-2.0
"""YAML as PyYAML's safe loader reads it, with the line of every value; keys given twice are a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from floatwise.exporters.forms.parsed import DEEPEST, FormError, Parsed
from floatwise.plan.problems import Loc

__all__ = ["dump_yaml", "parse_yaml"]

# Values with every alias written out; convention. Nine lines of nine aliases each make 9^9.
_MOST_VALUES = 200_000


def parse_yaml(text: str) -> Parsed:
    """Returns the table of a YAML text. As in YAML 1.1, an unquoted `no` is false.

    Raises:
      FormError: The text is not YAML, is no table, has a key twice, asks for Python objects, or contains itself.
    """
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[Loc, int] = {}
        if isinstance(node, yaml.MappingNode):
            _Places(loader, lines).note(node, ())
        content = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FormError(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FormError(line, f"not YAML: got the character #x{error.character:04x}: {error.reason}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        if isinstance(error, FormError):
            raise
        raise FormError(1, f"not YAML: {error}") from None
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise FormError(1, "got no table; expected lines of the form `key: value`")
    return Parsed(_with_text_keys(content), lines, content=content)


def dump_yaml(values: Mapping[Any, Any]) -> str:
    """Returns the table as YAML in the given order; texts that YAML would read as something else are quoted."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, default_flow_style=False)


class _Places:
    """Walks the nodes of a text and notes the line of each value, before anything is made of them."""

    def __init__(self, loader: yaml.SafeLoader, lines: dict[Loc, int]) -> None:
        self.loader, self.lines = loader, lines
        self.count = 0

    def note(self, node: Any, loc: Loc) -> None:
        line = node.start_mark.line + 1
        self.count += 1
        if len(loc) > DEEPEST:
            raise FormError(line, f"not a configuration: nested deeper than {DEEPEST}, or within itself by an alias")
        if self.count > _MOST_VALUES:
            raise FormError(line, f"not a configuration: its aliases come to more than {_MOST_VALUES} values")
        if loc:
            self.lines.setdefault(loc, line)
        if isinstance(node, yaml.MappingNode):
            self._members(node, loc)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.note(item, (*loc, index))

    def _members(self, node: yaml.MappingNode, loc: Loc) -> None:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise FormError(line, "got a list or table as a key, expected a text")
            key = key_node.value if _is_merge(key_node) else _key_text(self.loader.construct_object(key_node))
            if key in seen:
                raise FormError(line, f"got the key {key!r} a second time in one table; delete one of them")
            seen.add(key)
            self.lines.setdefault((*loc, key), line)
            self.note(value_node, (*loc, key))


def _is_merge(node: yaml.ScalarNode) -> bool:
    return str(node.tag) == "tag:yaml.org,2002:merge"


def _key_text(key: Any) -> str:
    """Returns a key as YAML writes it: `null` and `true`, not Python's names."""
    if key is None or isinstance(key, bool):
        return "null" if key is None else str(key).lower()
    return str(key)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key_text(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value
