# SPDX-License-Identifier: Apache-2.0
"""The forms by name, and which one a file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from floatwise.exporters.forms.flags_form import dump_flags, parse_flags
from floatwise.exporters.forms.json_form import dump_json, parse_json
from floatwise.exporters.forms.parsed import Parsed
from floatwise.exporters.forms.python_form import parse_python
from floatwise.exporters.forms.yaml_form import dump_yaml, parse_yaml

__all__ = ["FORMS", "Form", "form_of_file"]


@dataclass(frozen=True)
class Form:
    """A way of writing a configuration.

    Attributes:
      name: `json`, `yaml`, `python` or `flags`.
      suffixes: The ends of its files' names.
      parse: Text to values and lines; raises `FormError` with the line.
      dump: Values to text; ends with a newline. None where systems write the text themselves.
    """

    name: str
    suffixes: tuple[str, ...]
    parse: Callable[[str], Parsed]
    dump: Callable[[Mapping[str, Any]], str] | None


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "json": Form("json", (".json",), parse_json, dump_json),
        "yaml": Form("yaml", (".yaml", ".yml"), parse_yaml, dump_yaml),
        "python": Form("python", (".py",), parse_python, None),
        "flags": Form("flags", (".args", ".sh", ".txt"), parse_flags, dump_flags),
    }
)


def form_of_file(path: str) -> Form | None:
    """Returns the form of a file by the end of its name; None when no form has that end."""
    suffix = PurePath(path).suffix.lower()
    return next((form for form in FORMS.values() if suffix in form.suffixes), None)
