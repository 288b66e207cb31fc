# SPDX-License-Identifier: Apache-2.0
"""An unmodified script judged by rehearsal: every run of it is a child process, the comparison happens here."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from floatwise.plan import Plan, dumps_plan, recipe
from floatwise.rehearse.baseline import OTHER_RUNS, Baseline, baseline_of
from floatwise.rehearse.comparison import SpreadSource
from floatwise.rehearse.islands import search
from floatwise.rehearse.nonfinite import OperatorSite
from floatwise.rehearse.step_record import StepRecord
from floatwise.rehearse.trial import Trial
from floatwise.rehearse.verdict import Verdict
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["ScriptRehearsals"]

#: Runs of a plan until its loss scale suits the first batch; each begins at the scale that the last one came down to.
_MOST_ATTEMPTS = 8

Progress = Callable[[str, int, int], None]


class ScriptRehearsals:
    """Runs one script under one plan after the other.

    Args:
      script: Path of the script.
      arguments: Its own arguments.
      steps: Iterations of each run.
      progress: Told after each iteration: what is going on, iterations done, iterations in all.
    """

    def __init__(self, script: str, arguments: Sequence[str], steps: int, progress: Progress) -> None:
        self.script, self.arguments, self.steps, self.progress = script, tuple(arguments), steps, progress
        self._baseline: Baseline | None = None
        self._records: dict[str, StepRecord] = {}

    def baseline(self) -> Baseline:
        """Returns the float32 runs; the first call runs them.

        Raises:
          ScriptError: The script failed.
        """
        if self._baseline is None:
            plan = recipe("fp32")
            trial = self._run(plan, self.steps)
            if trial.step_record is not None:
                self._records[dumps_plan(plan)] = trial.step_record
            others = [self._losses(self._run(plan, self.steps, seed_offset=o)) for o in OTHER_RUNS]
            by_order = all(losses == self._losses(trial) for losses in others)
            permuted = [self._run(plan, self.steps if by_order else 1, permuted=o) for o in OTHER_RUNS]
            if by_order:
                others = [self._losses(run) for run in permuted]
            source: SpreadSource = "permuted_reductions" if by_order else "seeds"
            self._baseline = baseline_of(trial, others, source, [run.start for run in permuted])
        return self._baseline

    def judge(self, plan: Plan) -> Verdict:
        """Rehearses a plan and searches the islands that it needs.

        Raises:
          ScriptError: The script failed under the plan.
          PlanError: This runtime cannot apply the plan.
        """
        baseline = self.baseline()
        return search(plan, baseline, lambda candidate: self._settled(candidate, baseline))

    def step_record(self, plan: Plan) -> StepRecord | None:
        """Returns the step that was recorded when this very plan ran; None when it did not, or ended too early."""
        return self._records.get(dumps_plan(plan))

    def _settled(self, plan: Plan, baseline: Baseline) -> Trial:
        """Runs with a loss scale at which the first batch has finite gradients, if there is one."""
        lower = plan
        for _ in range(_MOST_ATTEMPTS):
            trial = self._run(lower, self.steps, baseline.known)
            if trial.step_record is not None:
                self._records[dumps_plan(plan)] = trial.step_record
            settings = lower.loss_scale
            if trial.start.scale is not None or trial.trained is None or settings is None:
                break
            if settings.mode == "static" or settings.initial_scale <= settings.floor:
                break
            scale = max(min(trial.trained.last_scale, settings.initial_scale / 2), settings.floor)
            lower = plan.model_copy(update={"loss_scale": settings.model_copy(update={"initial_scale": scale})})
        if not trial.start.is_finite:
            trial = replace(trial, trained=None)
        found = trial.start.first_nonfinite
        if found is not None:
            true = replace(found, true_amax=baseline.trial.start.amax.get(found.site))
            trial = replace(trial, start=replace(trial.start, first_nonfinite=true))
        return replace(trial, plan=plan)

    def _run(
        self,
        plan: Plan,
        steps: int,
        known: frozenset[OperatorSite] = frozenset(),
        *,
        seed_offset: int = 0,
        permuted: int | None = None,
    ) -> Trial:
        with tempfile.TemporaryDirectory(prefix="floatwise-") as folder:
            output = Path(folder, "trial.pt")
            options = {
                "plan": dumps_plan(plan),
                "known": [list(site) for site in known],
                "permuted": permuted,
                "record": seed_offset == 0 and permuted is None,
            }
            job = Job(self.script, self.arguments, steps, seed_offset=seed_offset, output=str(output), options=options)
            with Child("floatwise.rehearse.child", job, f"rehearsing {self.script} as {plan.recipe}") as child:
                for message in child.messages():
                    if message["event"] == "step":
                        self.progress("rehearse", message["index"] + 1, steps)
            trial: Trial = pickle.loads(output.read_bytes())  # of our own child
        return trial

    @staticmethod
    def _losses(trial: Trial) -> tuple[float, ...]:
        return trial.trained.losses if trial.trained is not None else (trial.start.loss,)
