# SPDX-License-Identifier: Apache-2.0
"""The validation library's complaints in the words of someone who edits a plan file."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from floatwise.errors import nearest_names
from floatwise.plan.problems import PlanProblems, Problem

__all__ = ["field_problems"]

# What was expected, by pydantic's error type; the values in braces come from its error context.
_EXPECTED = {
    "string_type": "text in quotes",
    "float_type": "a number",
    "int_type": "a whole number",
    "finite_number": "a finite number",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number not less than {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number not greater than {le}",
    "literal_error": "{expected}",
    "tuple_type": "a list",
    "too_short": "a list of {min_length}",
    "too_long": "a list of {max_length}",
}


def field_problems(error: ValidationError, fields: Mapping[str, FieldInfo]) -> list[Problem]:
    """Returns the faults of a table.

    Args:
      error: What pydantic found.
      fields: The keys the table has.
    """
    problems: list[Problem] = []
    for detail in error.errors(include_url=False):
        nested = detail.get("ctx", {}).get("error")
        if isinstance(nested, PlanProblems):
            problems += [Problem(detail["loc"] + p.loc, p.text) for p in nested.problems]
        else:
            problems.append(Problem(detail["loc"], _sentence(detail, fields)))
    return problems


def _sentence(detail: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    kind, key, context = detail["type"], str(detail["loc"][0]), detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(key, fields)
    field = fields[key]
    if kind == "missing":
        return f"missing; {_meaning(field)}"
    if kind == "value_error":
        return str(context["error"]).replace("\n", "; ")
    got = reprlib.repr(detail["input"])
    if kind == "model_type":
        header = f"[{key}]" if len(detail["loc"]) == 1 else f"[[{key}]]"
        return f"got {got}, expected a table that begins with the line {header}"
    if kind == "tuple_type" and key == "modules":
        return f"got {got}, expected a list of tables: begin each with the line [[modules]]"
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else f"otherwise ({detail['msg']})"
    return f"got {got}, expected {expected}{_example(key, field)}; {_meaning(field)}"


def _unknown_key(key: str, fields: Mapping[str, FieldInfo]) -> str:
    near = nearest_names(key, fields)
    offer = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ";"
    return f"unknown key{offer} known here: {', '.join(fields)}"


def _example(key: str, field: FieldInfo) -> str:
    default: Any = field.default
    if isinstance(default, str | int | float):
        return f", such as {tomli_w.dumps({key: default}).strip()}"
    return ""


def _meaning(field: FieldInfo) -> str:
    return f"it is {field.description}"
