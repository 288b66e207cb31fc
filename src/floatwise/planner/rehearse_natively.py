# SPDX-License-Identifier: Apache-2.0
"""Rehearsals of Keras and JAX scripts: a plan's own runtime trains them in this machine's arithmetic.

XLA, TensorFlow, and PyTorch where Keras calls it, multiply 16-bit operands on a CPU, add up in float32 and round the
result to 16 bits, as a matrix unit does; so the loss under a plan, held against float32 runs that differ by their
seeds, tells whether it trains as well. Gradients are not compared one by one, and memory and speed of other devices
are not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from floatwise.errors import ScriptError
from floatwise.plan import Plan, dumps_plan
from floatwise.planner.children import TRAINING_CHILDREN
from floatwise.planner.measure import other_seed
from floatwise.planner.record import Progress
from floatwise.planner.rehearsed import Rehearsed
from floatwise.probe.recording import Recording
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import LossRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.loss_spread import final_loss, loss_tolerance
from floatwise.rehearse.verdict import Verdict
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["compared", "rehearse_natively"]

#: Float32 seeds beside the script's own.
_OTHER_SEEDS = (1, 2)
#: Share of the steps that may be skipped: past it, most batches are lost.
_LARGEST_SKIPPED_SHARE = 0.5


def rehearse_natively(
    rehearsed: Rehearsed, plans: Sequence[Plan], recording: Recording, steps: int, progress: Progress
) -> Rehearsed:
    """Rehearses plans of different recipes and adds what they show.

    Args:
      rehearsed: What is known already.
      plans: The plans.
      recording: The probed run of the script.
      steps: Iterations of each run.
      progress: Told after each iteration.

    Raises:
      ScriptError: The script fails in float32 with another seed.
    """
    script, arguments, framework = recording.script, recording.arguments, recording.framework

    def in_float32(what: str, done: int, steps: int) -> None:
        progress("rehearse float32", done, steps)

    if not rehearsed.losses:
        runs = [other_seed(o, script, arguments, steps, in_float32, framework) for o in (0, *_OTHER_SEEDS)]
        message = {"losses": runs[0], "other_losses": runs[1:], "spread_source": "seeds"}
        rehearsed = rehearsed.with_baseline(message)
    for plan in plans:
        text = dumps_plan(plan)
        try:
            losses, skipped = _train(plan, recording, steps, progress)
        except ScriptError as error:
            rehearsed = rehearsed.with_verdict(plan.recipe, {"failure": str(error).partition("\n")[0]})
            continue
        comparison = compared(plan, losses, skipped, [rehearsed.losses, *rehearsed.other_losses])
        verdict = Verdict(
            status="accept" if comparison.passes else "refuse",
            plan=plan,
            islands=(),
            reasons=comparison.problems,
            advice=(),
            first=comparison,
            last=comparison,
            tried=(),
        )
        rehearsed = rehearsed.with_verdict(plan.recipe, {"plan": text, "verdict": verdict.to_json()})
    return rehearsed


def compared(plan: Plan, losses: Sequence[float], skipped: int, float32: Sequence[Sequence[float]]) -> Comparison:
    """Holds the losses under a plan against those of float32 runs.

    Args:
      plan: The plan.
      losses: Loss of each step under it.
      skipped: Steps whose gradients were not finite.
      float32: Losses of the float32 runs; the first has the seeds of the plan's.
    """
    finals = final_loss(float32[0]), final_loss(losses)
    tolerance = loss_tolerance(float32)
    return Comparison(
        recipe=plan.recipe,
        problems=tuple(_problems(losses, skipped, finals, tolerance, len(float32[0]))),
        remarks=(),
        losses=tuple(_rows(losses, float32)),
        final_losses=finals,
        tolerance=tolerance,
        spread_source="seeds",
        gradients=(),
        modules=(),
        first_nonfinite=None,
        loss_scale=plan.loss_scale.initial_scale if plan.loss_scale is not None else None,
        settling_skips=0,
        skipped_steps=skipped,
    )


def _train(plan: Plan, recording: Recording, steps: int, progress: Progress) -> tuple[list[float], int]:
    options = {"plan": dumps_plan(plan), "memory": False}
    job = Job(recording.script, recording.arguments, steps, options=options)
    losses: list[float] = []
    with Child(TRAINING_CHILDREN[recording.framework], job, f"rehearsing {recording.script}") as child:
        for message in child.messages():
            if message["event"] == "step":
                losses.append(float(message["loss"]))
                progress(f"rehearse {plan.recipe}", message["index"] + 1, steps)
    return losses, int(message["skipped_steps"])


def _problems(
    losses: Sequence[float], skipped: int, finals: tuple[float, float], tolerance: float, wanted: int
) -> list[Evidence]:
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return [Evidence("loss_not_finite", {"loss": "NaN" if math.isnan(loss) else "inf", "step": step})]
    if abs(finals[1] - finals[0]) > tolerance:
        data = {
            "planned": f"{finals[1]:.4g}",
            "float32": f"{finals[0]:.4g}",
            "tolerance": f"{tolerance:.2g}",
            "steps": len(losses),
        }
        return [Evidence("loss_outside_seeds", data)]
    if skipped > _LARGEST_SKIPPED_SHARE * len(losses):
        return [Evidence("most_steps_skipped", {"skipped": skipped, "steps": len(losses)})]
    if len(losses) < wanted:
        return [Evidence("ended_early", {"steps": len(losses), "float32_steps": wanted})]
    return []


def _rows(losses: Sequence[float], float32: Sequence[Sequence[float]]) -> list[LossRow]:
    rows = []
    for step, (mine, *theirs) in enumerate(zip_longest(losses, *float32, fillvalue=math.nan)):
        if step >= min(len(losses), len(float32[0])):
            break
        known = [loss for loss in theirs if not math.isnan(loss)]
        spread = max(known) - min(known) if known else math.nan
        rows.append(LossRow(step, theirs[0], mine, abs(mine - theirs[0]), spread, None))
    return rows
