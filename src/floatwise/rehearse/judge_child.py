# SPDX-License-Identifier: Apache-2.0
"""The process that judges plans for an unmodified script by rehearsal, for a parent that loads no framework."""

from __future__ import annotations

import sys
from typing import Any

from floatwise.errors import FloatwiseError, ScriptError
from floatwise.plan import dumps_plan, loads_plan, recipe
from floatwise.rehearse.script_runs import ScriptRehearsals
from floatwise.rehearse.step_record import StepRecord
from floatwise.tap.channel import Channel
from floatwise.tap.job import Job
from floatwise.tap.orphan import leave_with_parent

__all__ = ["judge_plans"]


def judge_plans(job: Job, channel: Channel) -> None:
    """Judges every plan of the job and says so: a message `baseline`, one `verdict` for each plan, then `done`.

    Options: `plans`, a list of TOML texts. `baseline` holds the losses of the float32 runs, what these differ by, and
    the recorded step. A message `verdict` holds `plan`, the TOML of the plan with the islands that were found,
    `verdict`, what `Verdict.to_json` gives, and the recorded step of that plan; or, for a script that fails under it,
    `failure`. Messages `step` tell what is going on.

    Raises:
      ScriptError: The script fails in float32.
      PlanError: This runtime cannot apply a plan.
    """

    def progress(what: str, done: int, steps: int) -> None:
        channel.send("step", what=what, index=done - 1, steps=steps)

    rehearsals = ScriptRehearsals(job.script, job.arguments, job.steps, progress)
    baseline = rehearsals.baseline()
    channel.send(
        "baseline",
        losses=baseline.losses,
        other_losses=baseline.other_losses,
        spread_source=baseline.spread_source,
        step_record=_json(rehearsals.step_record(recipe("fp32"))),
    )
    for text in job.options["plans"]:
        plan = loads_plan(text)
        try:
            verdict = rehearsals.judge(plan)
        except ScriptError as error:
            channel.send("verdict", plan=text, failure=str(error).partition("\n")[0])
            continue
        record = _json(rehearsals.step_record(verdict.plan))
        channel.send("verdict", plan=dumps_plan(verdict.plan), verdict=verdict.to_json(), step_record=record)
    channel.send("done")


def _json(record: StepRecord | None) -> dict[str, Any] | None:
    return None if record is None else record.to_json()


def main() -> None:
    """Entry: reads the job file named on the command line."""
    leave_with_parent()
    channel = Channel()
    channel.send("started")
    try:
        judge_plans(Job.load(sys.argv[1]), channel)
    except FloatwiseError as error:
        channel.send("failed", message=str(error), traceback=getattr(error, "traceback", ""))
    except Exception as error:  # of Floatwise itself: the decision is then made without a rehearsal
        channel.send("failed", message=f"the comparison failed with {type(error).__name__}: {error}", traceback="")


if __name__ == "__main__":
    main()
