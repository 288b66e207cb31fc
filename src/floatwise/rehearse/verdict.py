# SPDX-License-Identifier: Apache-2.0
"""What rehearsals of a plan come to: accept, accept with islands, or refuse. No framework is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from floatwise.plan import Plan
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.evidence import Evidence

__all__ = ["FoundIsland", "TriedIsland", "Verdict"]

Status = Literal["accept", "accept_with_islands", "refuse"]


@dataclass(frozen=True)
class FoundIsland:
    """A module that has to stay in float32.

    Attributes:
      module: Its path.
      reason: What pointed to it.
      flops_share: Share of the step's matrix FLOPs that are computed in it, forward and backward, 0 to 1.
    """

    module: str
    reason: Evidence
    flops_share: float


@dataclass(frozen=True)
class TriedIsland:
    """A module that was tried as an island, alone or beside those found before.

    Attributes:
      module: Its path.
      reason: What pointed to it.
      outcome: `passes`, `helps` (what spoke against the plan is elsewhere now), `no_help`, or `unneeded` (the
        rehearsal passes without it, after others were found).
    """

    module: str
    reason: Evidence
    outcome: Literal["passes", "helps", "no_help", "unneeded"]


@dataclass(frozen=True)
class Verdict:
    """A plan judged by its rehearsal.

    Attributes:
      status: `accept` as it is, `accept_with_islands`, or `refuse`.
      plan: The plan, with its islands.
      islands: Modules to keep in float32, fewest possible.
      reasons: Why it is refused, or needs islands; empty when it is accepted as it is.
      advice: What to change in the source instead.
      first: The comparison without islands.
      last: The comparison of `plan`.
      tried: Every module that was tried, in order.
    """

    status: Status
    plan: Plan
    islands: tuple[FoundIsland, ...]
    reasons: tuple[Evidence, ...]
    advice: tuple[Evidence, ...]
    first: Comparison
    last: Comparison
    tried: tuple[TriedIsland, ...]

    @property
    def recipe(self) -> str:
        """The plan's recipe."""
        return self.plan.recipe

    @property
    def flops_share(self) -> float:
        """Share of the step's matrix FLOPs in islands; none of them lies in another."""
        return sum(island.flops_share for island in self.islands)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON holds it."""
        islands = [
            {"module": i.module, "flops_share": i.flops_share, "reason": i.reason.to_json()} for i in self.islands
        ]
        tried = [{"module": t.module, "outcome": t.outcome, "reason": t.reason.to_json()} for t in self.tried]
        return {
            "status": self.status,
            "recipe": self.recipe,
            "islands": islands,
            "flops_share": self.flops_share,
            "reasons": [reason.to_json() for reason in self.reasons],
            "advice": [advice.to_json() for advice in self.advice],
            "tried": tried,
            "without_islands": self.first.to_json(),
            "comparison": self.last.to_json(),
        }

    @classmethod
    def from_json(cls, plan: Plan, values: Mapping[str, Any]) -> Verdict:
        """Reads what `to_json` gave.

        Args:
          plan: The plan with its islands, which `to_json` leaves to the plan's own file format.
          values: What it gave.

        Raises:
          ValueError: It gave something else.
        """
        return cls(
            status=_STATUS.validate_python(values["status"]),
            plan=plan,
            islands=_ISLANDS.validate_python(values["islands"]),
            reasons=_EVIDENCE.validate_python(values["reasons"]),
            advice=_EVIDENCE.validate_python(values["advice"]),
            first=Comparison.from_json(values["without_islands"]),
            last=Comparison.from_json(values["comparison"]),
            tried=_TRIED.validate_python(values["tried"]),
        )


_STATUS: TypeAdapter[Status] = TypeAdapter(Status)
_ISLANDS = TypeAdapter(tuple[FoundIsland, ...])
_TRIED = TypeAdapter(tuple[TriedIsland, ...])
_EVIDENCE = TypeAdapter(tuple[Evidence, ...])
