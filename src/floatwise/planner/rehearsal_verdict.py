# SPDX-License-Identifier: Apache-2.0
"""A verdict from recorded values, confirmed or overruled by the rehearsal of the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from floatwise.planner.decision import Island, Rehearsal, Verdict
from floatwise.planner.forward_range import covered
from floatwise.planner.numbers import magnitude, percent
from floatwise.planner.reasons import Reason
from floatwise.planner.rehearsed import Rehearsed

__all__ = ["with_rehearsal"]


def with_rehearsal(verdict: Verdict, rehearsed: Rehearsed) -> Verdict:
    """Returns the verdict as the rehearsal of the recipe has it; unchanged when there was none.

    A rehearsal that is refused refuses the recipe, and islands that it needs are added.
    """
    if verdict.status != "accepted" or verdict.recipe == "fp32":
        return verdict
    failure = rehearsed.failures.get(verdict.recipe)
    if failure is not None:
        reason = Reason("rehearsal_failed", {"recipe": verdict.recipe, "failure": failure})
        return replace(verdict, status="refused", reasons=(reason, *verdict.reasons))
    rehearsal = rehearsed.verdicts.get(verdict.recipe)
    if rehearsal is None:
        return verdict
    if rehearsal.status == "refuse":
        against = tuple(
            Reason("rehearsal_refused", {"recipe": verdict.recipe, "evidence": evidence})
            for evidence in rehearsal.reasons
        )
        return replace(verdict, status="refused", reasons=(*against, *verdict.reasons), rehearsal=rehearsal)
    new = tuple(island for island in _islands(rehearsal) if not covered(island.module, verdict.islands))
    outer = tuple(island for island in verdict.islands if not covered(island.module, new))
    reasons = (_passes(rehearsal), *(island.reason for island in new), *verdict.reasons)
    return replace(verdict, islands=(*outer, *new), reasons=reasons, rehearsal=rehearsal)


def _islands(rehearsal: Rehearsal) -> Iterator[Island]:
    for found in rehearsal.islands:
        data = {"evidence": found.reason, "share": percent(found.flops_share)}
        yield Island(found.module, Reason("rehearsal_island", data))


def _passes(rehearsal: Rehearsal) -> Reason:
    comparison = rehearsal.last
    float32, planned = comparison.final_losses
    data = {
        "steps": len(comparison.losses),
        "planned": magnitude(planned),
        "float32": magnitude(float32),
        "skipped": comparison.skipped_steps + comparison.settling_skips,
    }
    return Reason("rehearsal_passes_with_islands" if rehearsal.islands else "rehearsal_passes", data)
