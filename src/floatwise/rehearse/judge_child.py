# SPDX-License-Identifier: Apache-2.0
"""The process that judges plans for an unmodified script by rehearsal, for a parent that loads no framework."""

from __future__ import annotations

import sys

from floatwise.errors import FloatwiseError
from floatwise.plan import dumps_plan, loads_plan
from floatwise.rehearse.script_runs import ScriptRehearsals
from floatwise.tap.channel import Channel
from floatwise.tap.job import Job

__all__ = ["judge_plans"]


def judge_plans(job: Job, channel: Channel) -> None:
    """Judges every plan of the job and says so: a message `verdict` for each, in their order, then `done`.

    Options: `plans`, a list of TOML texts. A message `verdict` holds `plan`, the TOML of the plan with the islands that
    were found, and `verdict`, what `Verdict.to_json` gives. Messages `step` tell what is going on.
    """

    def progress(what: str, done: int, steps: int) -> None:
        channel.send("step", what=what, index=done - 1, steps=steps)

    rehearsals = ScriptRehearsals(job.script, job.arguments, job.steps, progress)
    for text in job.options["plans"]:
        verdict = rehearsals.judge(loads_plan(text))
        channel.send("verdict", plan=dumps_plan(verdict.plan), verdict=verdict.to_json())
    channel.send("done")


def main() -> None:
    """Entry: reads the job file named on the command line."""
    channel = Channel()
    channel.send("started")
    try:
        judge_plans(Job.load(sys.argv[1]), channel)
    except FloatwiseError as error:
        channel.send("failed", message=str(error), traceback=getattr(error, "traceback", ""))


if __name__ == "__main__":
    main()
