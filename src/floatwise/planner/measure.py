# SPDX-License-Identifier: Apache-2.0
"""The plan against float32 on this machine: two processes train the same steps in turn, one iteration each.

A machine's speed drifts, and it drifts for both alike when they take turns; the ratio of neighbouring iterations
does not care. Further float32 runs with other seeds tell how much the loss varies by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from floatwise.errors import ScriptError
from floatwise.plan import Plan, dumps_plan, recipe
from floatwise.planner.children import TRAINING_CHILDREN
from floatwise.planner.decision import LossParity, Measured, Products
from floatwise.planner.record import Progress
from floatwise.rehearse.loss_spread import final_loss, loss_tolerance
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["loss_parity", "measure", "other_seed"]

#: Float32 seeds beside the script's own.
_OTHER_SEEDS = (1, 2)


_PRODUCTS = TypeAdapter(Products)


@dataclass
class _Run:
    seconds: list[float]
    losses: list[float]
    peak_bytes: int | None = None
    products: Products | None = None


def measure(
    plan: Plan,
    script: str,
    arguments: Sequence[str],
    steps: int,
    device: str,
    progress: Progress,
    other_seeds: Sequence[Sequence[float]] | None = None,
    framework: str = "torch",
) -> Measured:
    """Trains `steps` iterations in float32 and under the plan, side by side.

    Args:
      plan: The plan.
      script: Path of the script.
      arguments: Its own arguments.
      steps: Iterations of each run.
      device: Name of this machine's device.
      progress: Told after each iteration.
      other_seeds: Losses of float32 runs with other seeds, where these were made before; they are run otherwise.
      framework: What the script trains with.

    Raises:
      ScriptError: The script failed under the plan.
    """
    plain, planned = _in_turn(plan, script, arguments, steps, progress, framework)
    if other_seeds is None:
        other_seeds = [other_seed(o, script, arguments, steps, progress, framework) for o in _OTHER_SEEDS]
    seeds = [plain.losses, *other_seeds]
    ratios = [a / b for a, b in zip(plain.seconds, planned.seconds, strict=True)]
    known = plain.peak_bytes and planned.peak_bytes
    return Measured(
        device=device,
        steps=len(ratios),
        recipe=plan.recipe,
        speed_ratio=statistics.median(ratios),
        speed_spread=_quartiles(ratios),
        memory_ratio=planned.peak_bytes / plain.peak_bytes if known else None,  # type: ignore[operator]
        planned_bytes=planned.peak_bytes,
        float32_bytes=plain.peak_bytes,
        step_seconds=(statistics.median(planned.seconds), statistics.median(plain.seconds)),
        losses={"planned": tuple(planned.losses), "float32": tuple(plain.losses)},
        loss_parity=loss_parity(planned.losses, seeds),
        products=planned.products,
    )


def loss_parity(planned: Sequence[float], float32: Sequence[Sequence[float]]) -> LossParity | None:
    """Compares final losses: the plan's must be as near to float32's as float32's seeds are to one another.

    Args:
      planned: Losses of the planned run.
      float32: Losses of the float32 runs; the first has the planned run's seed.
    """
    finals = [final_loss(losses) for losses in float32]
    mine = final_loss(planned)
    if any(math.isnan(loss) for loss in finals):
        return None
    own = loss_tolerance(float32)
    spread = (finals[0] - own, finals[0] + own)
    return LossParity(spread[0] <= mine <= spread[1], mine, tuple(finals), spread)


def _in_turn(
    plan: Plan, script: str, arguments: Sequence[str], steps: int, progress: Progress, framework: str
) -> tuple[_Run, _Run]:
    plain, planned = _Run([], []), _Run([], [])
    with ExitStack() as stack:
        pairs = []
        for each, run in ((recipe("fp32"), plain), (plan, planned)):
            job = Job(script, tuple(arguments), steps, paced=True, options={"plan": dumps_plan(each)})
            what = f"training {script} as {each.recipe}"
            child = stack.enter_context(Child(TRAINING_CHILDREN[framework], job, what))
            # The second starts up when the first has trained its first step: together they would only contend.
            _take_next(child, run)
            pairs.append((child, run))
        for index in range(1, steps + 1):
            progress("measure", index, steps)
            if not all([_one_more(child, run) for child, run in pairs]):
                break
    return _cut_to_pairs((plain, planned))


def _one_more(child: Child, run: _Run) -> bool:
    child.go()
    return _take_next(child, run)


def _take_next(child: Child, run: _Run) -> bool:
    message = child.next()
    return _take_next(child, run) if message["event"] == "started" else _take(message, run)


def _take(message: dict[str, Any], run: _Run) -> bool:
    if message["event"] == "done":
        run.peak_bytes = message["peak_bytes"]
        if message.get("products") is not None:
            run.products = _PRODUCTS.validate_python(message["products"])
        return False
    run.losses.append(float(message["loss"]))
    if message["timed"]:
        run.seconds.append(float(message["seconds"]))
    return True


def _cut_to_pairs(runs: tuple[_Run, _Run]) -> tuple[_Run, _Run]:
    pairs = min(len(run.seconds) for run in runs)
    if pairs < 1:
        raise ScriptError(
            "the script ended before a step could be timed; let it train for at least 5 steps, "
            "or judge without measuring: --no-measure"
        )
    for run in runs:
        del run.seconds[pairs:]
    return runs


def other_seed(
    offset: int, script: str, arguments: Sequence[str], steps: int, progress: Progress, framework: str
) -> list[float]:
    """Trains in float32 with `offset` added to every seed, and returns the loss of each iteration.

    Raises:
      ScriptError: The script failed.
    """
    options = {"plan": dumps_plan(recipe("fp32")), "memory": False}
    job = Job(script, tuple(arguments), steps, seed_offset=offset, options=options)
    losses = []
    with Child(TRAINING_CHILDREN[framework], job, f"training {script} with another seed") as child:
        for message in child.messages():
            if message["event"] == "step":
                losses.append(float(message["loss"]))
                progress(f"seed {offset}", message["index"] + 1, steps)
    return losses


def _quartiles(ratios: Sequence[float]) -> tuple[float, float]:
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high
