# SPDX-License-Identifier: Apache-2.0
"""The fewest modules in float32 with which the rehearsal of a plan passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from floatwise.plan import ModulePolicy, Plan, Policy, escape_module, recipe
from floatwise.rehearse.advice import advise
from floatwise.rehearse.baseline import Baseline, measure_baseline
from floatwise.rehearse.compare import compare
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.float8_remarks import float8_advice
from floatwise.rehearse.float8_script import without_float8
from floatwise.rehearse.suspects import LEAST_LOST_DB, Suspect, contains, suspects
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.trial import Trial, rehearse
from floatwise.rehearse.verdict import FoundIsland, TriedIsland, Verdict

__all__ = ["judge_by_rehearsal", "search"]

#: Most islands. Chosen: a model that needs more is not one for the format.
MOST_ISLANDS = 8
#: Largest share of the matrix FLOPs that islands may keep in float32: as in the planner's verdict on float16.
LARGEST_ISLAND_SHARE = 0.5
#: Suspects tried for one island. The first is right in all planted cases of the tests; each costs a rehearsal.
MOST_SUSPECTS = 6

_FLOAT32 = Policy(param_dtype="float32", compute_dtype="float32", output_dtype="float32")


def judge_by_rehearsal(
    make_training: MakeTraining, plan: Plan | str, steps: int = 10, *, seed: int = 0, baseline: Baseline | None = None
) -> Verdict:
    """Rehearses a plan, finds the islands that it needs, and says whether it is to be trusted.

    Args:
      make_training: Makes the training.
      plan: The plan, or the name of a recipe; islands of its own stay.
      steps: How many steps to train. Default 10.
      seed: What the random state is seeded with. Default 0.
      baseline: The same training in float32, when it was measured before (with the same steps and seed).

    Raises:
      PlanError: This runtime cannot apply the plan.
    """
    plan = recipe(plan) if isinstance(plan, str) else plan
    measured = baseline or measure_baseline(make_training, steps, seed=seed)

    def run(candidate: Plan) -> Trial:
        known, amax = measured.known, measured.trial.start.amax
        return rehearse(make_training, candidate, steps, seed=seed, known=known, true_amax=amax)

    return search(plan, measured, run)


def search(plan: Plan, baseline: Baseline, run: Callable[[Plan], Trial]) -> Verdict:
    """Judges a plan by rehearsals, however they are run.

    Args:
      plan: The plan; islands of its own stay.
      baseline: The training in float32.
      run: Rehearses the same training under a plan.
    """
    return _Search(plan, baseline, run).verdict()


class _Search:
    def __init__(self, plan: Plan, baseline: Baseline, run: Callable[[Plan], Trial]) -> None:
        self.plan, self.baseline, self.run = plan, baseline, run
        self.tried: list[TriedIsland] = []

    def verdict(self) -> Verdict:
        if not self.baseline.is_finite:
            return self._refused_for_baseline()
        first = self._compared(())
        if first.passes:
            return Verdict("accept", self.plan, (), (), (), first, first, ())
        if self._lacks_only_scale(first):
            scale = self.plan.loss_scale.initial_scale if self.plan.loss_scale is not None else 1.0
            advice = Evidence("raise_loss_scale", {"scale": f"{scale:g}"})
            return Verdict("refuse", self.plan, (), first.problems, (advice,), first, first, ())
        islands, last = self._find(first)
        islands, last = self._without_unneeded(islands, last)
        found = tuple(FoundIsland(s.module, s.reason, self._share(s.module)) for s in islands)
        share = sum(island.flops_share for island in found)
        reasons = list(first.problems)
        if first.first_nonfinite is not None:
            reasons.append(Evidence.of_nonfinite(first.first_nonfinite))
        if last.passes and share > LARGEST_ISLAND_SHARE:
            reasons.insert(0, Evidence("islands_too_large", {"share": f"{share:.0%}"}))
        if not last.passes:
            reasons.append(Evidence("no_islands_help"))
        accepted = last.passes and share <= LARGEST_ISLAND_SHARE
        return Verdict(
            "accept_with_islands" if accepted else "refuse",
            _with_islands(self.plan, islands),
            found,
            tuple(reasons),
            self._advice(first),
            first,
            last,
            tuple(self.tried),
        )

    def _lacks_only_scale(self, first: Comparison) -> bool:
        settings = self.plan.loss_scale
        is_fixed = self.plan.compute_dtype == "float16" and (settings is None or settings.mode == "static")
        return is_fixed and any(problem.code == "gradients_vanish" for problem in first.problems)

    def _find(self, comparison: Comparison) -> tuple[tuple[Suspect, ...], Comparison]:
        islands: tuple[Suspect, ...] = ()
        while not comparison.passes and len(islands) < MOST_ISLANDS:
            better = self._one_more(islands, comparison)
            if better is None:
                break
            islands, comparison = better
        return islands, comparison

    def _one_more(
        self, islands: tuple[Suspect, ...], before: Comparison
    ) -> tuple[tuple[Suspect, ...], Comparison] | None:
        helping = None
        outer = [
            suspect for suspect in suspects(before) if not any(contains(i.module, suspect.module) for i in islands)
        ]
        for suspect in outer[:MOST_SUSPECTS]:
            wider = (*(i for i in islands if not contains(suspect.module, i.module)), suspect)
            after = self._compared(wider)
            if after.passes:
                self._note(suspect, "passes")
                return wider, after
            helps = _progress(after) > _progress(before)
            self._note(suspect, "helps" if helps else "no_help")
            if helps and before.first_nonfinite is not None:
                return wider, after  # the next infinity shows itself only now
            if helps and (helping is None or _progress(after) > _progress(helping[1])):
                helping = wider, after
        return helping

    def _without_unneeded(
        self, islands: tuple[Suspect, ...], last: Comparison
    ) -> tuple[tuple[Suspect, ...], Comparison]:
        for island in islands if last.passes and len(islands) > 1 else ():
            fewer = tuple(i for i in islands if i is not island)
            comparison = self._compared(fewer)
            if comparison.passes:
                self._note(island, "unneeded")
                islands, last = fewer, comparison
        return islands, last

    def _compared(self, islands: Sequence[Suspect]) -> Comparison:
        return compare(self.baseline, self.run(_with_islands(self.plan, islands)))

    def _note(self, suspect: Suspect, outcome: Literal["passes", "helps", "no_help", "unneeded"]) -> None:
        self.tried.append(TriedIsland(suspect.module, suspect.reason, outcome))

    def _share(self, module: str) -> float:
        flops = self.baseline.trial.start.flops
        inside = sum(count for path, count in flops.items() if contains(module, path))
        return inside / max(sum(flops.values()), 1)

    def _advice(self, first: Comparison) -> tuple[Evidence, ...]:
        if first.first_nonfinite is not None:
            advice = advise(first.first_nonfinite)
            return (advice,) if advice is not None else ()
        by_scale = float8_advice(self.plan, first.remarks)
        if by_scale is not None:
            return (by_scale,)
        losing = next(iter(first.modules), None)
        if losing is None or losing.lost_db < LEAST_LOST_DB:
            return ()
        rounded = without_float8(self.plan).compute_dtype
        return (Evidence("not_from_rounded", {"module": losing.module or "(root)", "format": rounded}),)

    def _refused_for_baseline(self) -> Verdict:
        loss = next((x for x in self.baseline.losses if not math.isfinite(x)), math.nan)
        comparison = compare(self.baseline, self.baseline.trial)
        reason = Evidence("baseline_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf"})
        return Verdict("refuse", self.plan, (), (reason,), (), comparison, comparison, ())


def _progress(comparison: Comparison) -> tuple[float, ...]:
    """Returns how far a rehearsal gets: steps with a finite loss, operators before the first infinity, gradients."""
    found = comparison.first_nonfinite
    steps = len(comparison.losses) if comparison.loss_scale is not None else 0
    wrong = sum(row.is_wrong or row.has_vanished or row.stalls for row in comparison.gradients)
    position = math.inf if found is None else found.step * 1e9 + found.position
    return (steps, position, -wrong)


def _with_islands(plan: Plan, islands: Sequence[Suspect]) -> Plan:
    more = tuple(ModulePolicy(module=escape_module(i.module), policy=_FLOAT32, reason=str(i.reason)) for i in islands)
    return plan.model_copy(update={"modules": (*plan.modules, *more)})
