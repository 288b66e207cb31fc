# SPDX-License-Identifier: Apache-2.0
"""What a plan was decided from: JSON-like tables, frozen when the plan is made."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

from pydantic import PlainValidator, WithJsonSchema

from floatwise.plan.problems import Loc, PlanProblems, Problem
from floatwise.plan.text import unencodable

__all__ = ["Evidence", "EvidenceList", "EvidenceTable"]

# Deeper than anything written for a reader; it also ends tables that contain themselves. Convention.
_MAX_DEPTH = 32
# TOML 1.0, "Integer": implementations need only read 64-bit signed integers.
_MAX_INTEGER = 2**63


class _Frozen:
    """Refuses the methods that change a list or a dictionary."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a plan's evidence cannot be changed; make a new plan with recipe(name, evidence=...)")

    __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = popitem = remove = reverse = setdefault = sort = update = _refuse


class EvidenceTable(_Frozen, dict[str, Any]):
    """A dictionary that cannot be changed; equal to a plain one with the same content."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[EvidenceTable], tuple[dict[str, Any]]]:
        return type(self), (dict(self),)


class EvidenceList(_Frozen, list[Any]):
    """A list that cannot be changed; equal to a plain one with the same content."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[EvidenceList], tuple[list[Any]]]:
        return type(self), (list(self),)


def _freeze(value: object) -> EvidenceTable:
    if not isinstance(value, Mapping):
        raise PlanProblems([Problem((), f"got {reprlib.repr(value)}, expected a table")])
    problems: list[Problem] = []
    table = _table(value, (), problems)
    if problems:
        raise PlanProblems(problems)
    return table


def _table(value: Mapping[Any, Any], loc: Loc, problems: list[Problem]) -> EvidenceTable:
    entries = {}
    for key, item in value.items():
        if not isinstance(key, str) or unencodable(key):
            problems.append(Problem(loc, f"got the key {key!r}, expected text that UTF-8 can write"))
        else:
            entries[str(key)] = _copy(item, (*loc, str(key)), problems)
    return EvidenceTable(entries)


def _copy(value: object, loc: Loc, problems: list[Problem]) -> object:
    if len(loc) > _MAX_DEPTH:
        problems.append(Problem(loc[:1], f"nested more than {_MAX_DEPTH} deep; make it flatter"))
    elif isinstance(value, Mapping):
        return _table(value, loc, problems)
    elif isinstance(value, list | tuple):
        return EvidenceList(_copy(item, (*loc, i), problems) for i, item in enumerate(value))
    elif isinstance(value, bool):
        return value
    elif isinstance(value, int) and -_MAX_INTEGER <= value < _MAX_INTEGER:
        return int(value)
    elif isinstance(value, float) and math.isfinite(value):
        return float(value)
    elif isinstance(value, str) and not unencodable(value):
        return str(value)
    else:
        problems.append(Problem(loc, _not_evidence(value)))
    return None


def _not_evidence(value: object) -> str:
    got = reprlib.repr(value)
    if value is None:
        return "got None, which TOML cannot write; leave the key out"
    if isinstance(value, float):
        return f"got {got}, which JSON cannot write; use text, such as {str(value)!r}"
    if isinstance(value, int):
        return f"got {got}, which does not fit into 64 bits; use a float or text"
    if isinstance(value, str):
        return f"got {got}, which UTF-8 cannot write; replace the lone surrogates"
    return f"got {got} ({type(value).__name__}), expected text, a number, true or false, a list or a table"


# Named as a mapping so that type checkers refuse changes as well.
Evidence = Annotated[
    Mapping[str, Any],
    PlainValidator(_freeze),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]
