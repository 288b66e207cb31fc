# SPDX-License-Identifier: Apache-2.0
"""Rehearses a PyTorch script under plans: one child process judges them all against the same float32 runs."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.plan import Plan, dumps_plan
from floatwise.planner.record import Progress
from floatwise.planner.rehearsed import Rehearsed
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["rehearse"]


def rehearse(
    rehearsed: Rehearsed, plans: Sequence[Plan], script: str, arguments: Sequence[str], steps: int, progress: Progress
) -> Rehearsed:
    """Rehearses plans of different recipes and adds what they show.

    Args:
      rehearsed: What is known already.
      plans: The plans.
      script: Path of the script.
      arguments: Its own arguments.
      steps: Iterations of each run.
      progress: Told after each iteration.

    Raises:
      ScriptError: The script fails in float32 with another seed.
    """
    job = Job(script, tuple(arguments), steps, options={"plans": [dumps_plan(plan) for plan in plans]})
    waiting = [plan.recipe for plan in plans]
    what = "float32"
    with Child("floatwise.rehearse.judge_child", job, f"rehearsing {script}") as child:
        for message in child.messages():
            if message["event"] == "step":
                progress(f"rehearse {what}", message["index"] + 1, steps)
            elif message["event"] == "baseline":
                rehearsed = rehearsed.with_baseline(message)
                what = waiting[0]
            elif message["event"] == "verdict":
                rehearsed = rehearsed.with_verdict(waiting.pop(0), message)
                what = waiting[0] if waiting else what
    return rehearsed
