# SPDX-License-Identifier: Apache-2.0
"""What differs between two plans, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.language import Text
from floatwise.plan.layout import inline, key
from floatwise.plan.meaning import meaning_of
from floatwise.plan.model import Plan

__all__ = ["Change", "diff_plans"]


@dataclass(frozen=True)
class Change:
    """A value that differs.

    Attributes:
      path: Where, as in `loss_scale.initial_scale` or `modules["encoder.*"].policy.compute_dtype`.
      before: The value in the first plan; None where it has none.
      after: The value in the second plan; None where it has none.
    """

    path: str
    before: Any
    after: Any

    @property
    def meaning(self) -> Text | None:
        """What the change does to training; None where that needs no words."""
        return meaning_of(self.path, self.before, self.after)


def diff_plans(a: Plan, b: Plan) -> tuple[Change, ...]:
    """Returns the changes from `a` to `b`, in the order of a plan file; empty when the plans are equal.

    Entries of `modules` are matched by their globs. Where globs that both plans have stand in another order,
    a change of `modules` holds the two orders, since later entries win.
    """
    before, after = _leaves(a), _leaves(b)
    changes = [
        Change(path, before.get(path), after.get(path))
        for path in _merged(before, after)
        if before.get(path) != after.get(path)
    ]
    orders = _common_globs(a, b), _common_globs(b, a)
    return tuple(changes if orders[0] == orders[1] else [*changes, Change("modules", *orders)])


def _leaves(plan: Plan) -> dict[str, Any]:
    values = plan.model_dump(exclude_none=True)
    entries = values.pop("modules")
    if not values["evidence"]:
        del values["evidence"]
    leaves = dict(_flat("", values))
    for entry in entries:
        leaves.update(_flat(f"modules[{inline(entry.pop('module'))}]", entry))
    return leaves


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{key(name)}" if path else key(name), inner)
    else:
        yield path, value


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the paths of both, each table's together, in the order in which tables first appear."""
    paths = list(dict.fromkeys([*before, *after]))
    rank = {name: i for i, name in enumerate(Plan.model_fields)}
    return sorted(paths, key=lambda path: rank[path.split(".")[0].split("[")[0]])


def _common_globs(plan: Plan, other: Plan) -> tuple[str, ...]:
    known = {entry.module for entry in other.modules}
    return tuple(entry.module for entry in plan.modules if entry.module in known)
