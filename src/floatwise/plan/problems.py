# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a plan, as data: where and why; a reader of files turns the where into a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from floatwise.errors import PlanError
from floatwise.plan.layout import key

__all__ = ["Conflict", "Loc", "PlanProblems", "Problem", "Rule", "dotted"]

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One fault.

    Attributes:
      loc: Keys and list positions from the top of the plan down to the fault.
      text: What was got, what is allowed and what to do, to be read after the location.
    """

    loc: Loc
    text: str


@dataclass(frozen=True)
class Conflict:
    """What one rule found: values that are each legal and cannot go together.

    Attributes:
      loc: The value to blame.
      what: The combination that was got.
      do: What to write instead.
    """

    loc: Loc
    what: str
    do: str


@dataclass(frozen=True)
class Rule:
    """A combination that is refused.

    Attributes:
      code: Short name of the fault.
      reads: Keys of the checked table the rule looks at; where one of them could not be read, it is silent.
      check: Yields what it finds in the checked table.
      why: Why the combination cannot work.
      source: Where that is known from.
    """

    code: str
    reads: frozenset[str]
    check: Callable[[Any], Iterator[Conflict]]
    why: str
    source: str

    def problems(self, checked: Any) -> Iterator[Problem]:
        """Yields the conflicts in `checked`, with the reason and the way out."""
        for conflict in self.check(checked):
            do = conflict.do.replace("\n", "\n        ")
            yield Problem(conflict.loc, f"{conflict.what}\n    why: {self.why}\n    do:  {do}")


class PlanProblems(PlanError):
    """Every fault of one plan at once.

    Attributes:
      problems: The faults, in the order in which they were found.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{dotted(p.loc)}: {p.text}" for p in self.problems))

    def __reduce__(self) -> tuple[type[PlanProblems], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def dotted(loc: Loc) -> str:
    """Returns `loc` as `modules[0].policy.compute_dtype`; keys that need quotes in TOML have them."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{key(part)}" if text else key(part)
    return text or "plan"
