# SPDX-License-Identifier: Apache-2.0
"""The base of every table of a plan: frozen, strict, and all faults told at once in our own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from floatwise.errors import nearest_names
from floatwise.plan.problems import PlanProblems, Problem, Rule
from floatwise.plan.wording import field_problems

__all__ = ["PlanPart"]


class PlanPart(BaseModel):
    """A table of a plan.

    Attributes:
      rules: Combinations of its values that are refused.
      stand_ins: Harmless values for required keys, so that the rules can judge the rest of a faulty table.

    Raises:
      PlanError: A key or value is wrong, or values contradict each other; the message lists all faults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    rules: ClassVar[tuple[Rule, ...]] = ()
    stand_ins: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, /, **data: Any) -> None:
        problems: list[Problem] = []
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = field_problems(error, type(self).model_fields)
        if self.rules:
            problems += self._contradictions(data, _doubtful(problems, type(self).model_fields))
        if problems:
            raise PlanProblems(problems) from None

    def _contradictions(self, data: dict[str, Any], doubtful: frozenset[str]) -> list[Problem]:
        """Runs the rules whose values could be read; a doubtful key has its default meanwhile."""
        checked: PlanPart = self
        if doubtful:
            known = type(self).model_fields
            readable = {k: v for k, v in data.items() if k in known and k not in doubtful}
            checked = object.__new__(type(self))
            # Not the constructor of this class: its rules would report a second time.
            BaseModel.__init__(checked, **{**self.stand_ins, **readable})
        return [p for rule in self.rules if not rule.reads & doubtful for p in rule.problems(checked)]


def _doubtful(problems: list[Problem], known: Iterable[str]) -> frozenset[str]:
    """Returns the keys whose value is unknown, and those that an unknown key was perhaps meant to be."""
    keys = {p.loc[0] for p in problems if p.loc and isinstance(p.loc[0], str)}
    meant = {near for key in keys for near in nearest_names(key, known)}
    return frozenset(keys | meant)
