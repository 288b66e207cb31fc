# SPDX-License-Identifier: Apache-2.0
"""What rehearsals of a plan come to: accept, accept with islands, or refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from floatwise.plan import Plan
from floatwise.rehearse.compare import Comparison
from floatwise.rehearse.evidence import Evidence

__all__ = ["FoundIsland", "TriedIsland", "Verdict"]


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

    status: Literal["accept", "accept_with_islands", "refuse"]
    plan: Plan
    islands: tuple[FoundIsland, ...]
    reasons: tuple[Evidence, ...]
    advice: tuple[Evidence, ...]
    first: Comparison
    last: Comparison
    tried: tuple[TriedIsland, ...]

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
            "recipe": self.plan.recipe,
            "islands": islands,
            "flops_share": self.flops_share,
            "reasons": [reason.to_json() for reason in self.reasons],
            "advice": [advice.to_json() for advice in self.advice],
            "tried": tried,
            "without_islands": self.first.to_json(),
            "comparison": self.last.to_json(),
        }
