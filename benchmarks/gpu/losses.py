# SPDX-License-Identifier: Apache-2.0
"""Part 2: the same training rehearsed and real: losses, skipped steps, and the loss scale, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.part import Part
from benchmarks.gpu.sides import Rehearsal, Side, real_side

from floatwise.plan import LossScale, Plan, recipe
from floatwise.torch import prepare

__all__ = ["MODELS", "RECIPES", "Curve", "give", "overflowing", "run", "train"]

MODELS = ("text_gpt", "digits_cnn")

#: By the name in the table.
RECIPES: dict[str, Plan] = {
    "float32": recipe("fp32"),
    "bfloat16": recipe("bf16-mixed"),
    "float16": recipe("fp16-mixed"),
}

#: Powers of two between the loss scales that are tried to find one that is just too large.
_TRIED_BITS = 4

#: Further float32 runs; three runs with different seeds have a spread, as in `floatwise.rehearse.baseline`.
OTHER_SEEDS = (1, 2)


@dataclass(frozen=True)
class Curve:
    """A training.

    Attributes:
      losses: Of each step.
      scales: The loss scale of each step's backward pass; 1 without one.
      skipped: Numbers of the steps that updated nothing.
    """

    losses: tuple[float, ...]
    scales: tuple[float, ...]
    skipped: tuple[int, ...]


def run(part: Part) -> None:
    """Trains two models under three recipes on both sides."""
    real, rehearsal = real_side(part.device), Rehearsal()
    steps = 16 if part.is_tiny else 40
    for name in MODELS:
        model = model_of(name, part.size)
        # What the rehearsal takes on the CPU decides.
        if not part.has_time_for(model.name, 1 if part.is_tiny else 20):
            continue
        with part.attempting(f"losses, {model.name}, float32"):
            baseline = train(real, model, RECIPES["float32"], steps)
            others = [train(real, model, RECIPES["float32"], steps, seed) for seed in OTHER_SEEDS]
            spread = _spread([baseline, *others])
            plans = {**RECIPES, "float16": overflowing(rehearsal, model)}
            for label, plan in plans.items():
                with part.attempting(f"losses, {model.name}, {label}"):
                    curves = [train(side, model, plan, steps) for side in (rehearsal, real)]
                    give(part, model.name, label, curves[0], curves[1], baseline, spread)


def overflowing(side: Side, model: Model) -> Plan:
    """Returns float16 with a loss scale so large that the first steps overflow.

    It grows after few good steps (chosen), without regard to headroom, so that later ones overflow, too.

    Args:
      side: Where the scale is tried.
      model: The model.
    """
    module, batch = side.model(model.made()), side.place(model.batch(0))
    exponent = 40
    with side.holding():
        while True:
            exponent -= _TRIED_BITS
            module.zero_grad()
            with side.region(torch.float16):
                loss = model.loss(module, *batch)
            (loss * 2.0**exponent).backward()
            if exponent < 0 or all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None):
                break
    scale = LossScale(
        initial_scale=2.0 ** (exponent + _TRIED_BITS + 1), growth_interval=6, growth="fixed", ceiling=2.0**60
    )
    return recipe("fp16-mixed", loss_scale=scale)


def train(side: Side, model: Model, plan: Plan, steps: int, seed: int = 0) -> Curve:
    """Trains some steps on one side, from a seed's weights, on the batches that come after that seed.

    Args:
      side: The side.
      model: The model.
      plan: The plan.
      steps: How many.
      seed: Of the weights and the batches.
    """
    losses, scales, skipped = [], [], []
    with ExitStack() as stack:
        stack.enter_context(side.holding())
        module = side.model(model.made(seed))
        precision = prepare(module, model.optimizer(module), plan)
        stack.callback(precision.close)
        for step in range(steps):
            batch = side.place(model.batch(1000 * seed + step))
            precision.zero_grad()
            with precision.forward():
                loss = model.loss(module, *batch)
            scales.append(precision.scaler.get_scale())
            precision.backward(loss)
            if not precision.step().stepped:
                skipped.append(step)
            losses.append(loss.item())
    return Curve(tuple(losses), tuple(scales), tuple(skipped))


def _spread(curves: Sequence[Curve]) -> float:
    """Returns how far float32 runs with other seeds are apart, as the mean over steps of the range."""
    ranges: list[float] = [max(losses) - min(losses) for losses in zip(*(c.losses for c in curves), strict=True)]
    return sum(ranges) / len(ranges)


def _distance(a: Curve, b: Curve) -> float:
    return sum(abs(x - y) for x, y in zip(a.losses, b.losses, strict=True)) / len(a.losses)


def give(part: Part, model: str, label: str, rehearsed: Curve, real: Curve, baseline: Curve, spread: float) -> None:
    """Gives the figures of one training on both sides, and checks them.

    Args:
      part: Takes them.
      model: Its name.
      label: Of the recipe; scales and skips are checked for `float16`.
      rehearsed: The rehearsal.
      real: The real training.
      baseline: The real float32 training.
      spread: Of float32 over seeds.
    """
    distance = _distance(rehearsed, real)
    skips = f"{len(rehearsed.skipped)} and {len(real.skipped)} skips" if label == "float16" else "no loss scale"
    what = f"{model}, {label}"
    part.row(
        f"{what:24} mean distance of losses {distance:.1e}, float32's spread {spread:.1e}; {skips}; "
        f"last losses {rehearsed.losses[-1]:.4f} and {real.losses[-1]:.4f}",
        model=model,
        recipe=label,
        steps=len(real.losses),
        mean_distance=distance,
        float32_spread=spread,
        real_from_float32=_distance(real, baseline),
        rehearsed=_plain(rehearsed),
        real=_plain(real),
    )
    finite = all(map(math.isfinite, (*rehearsed.losses, *real.losses)))
    part.check(f"losses, {what}", finite and distance <= spread, f"{distance:.2g} apart, float32's spread {spread:.2g}")
    if label != "float16":
        return
    part.check(f"overflows occur, {what}", bool(real.skipped), f"steps {list(real.skipped)} were skipped")
    same = rehearsed.skipped == real.skipped and rehearsed.scales == real.scales
    part.check(f"skipped steps and loss scales, {what}", same, _first_difference(rehearsed, real))


def _plain(curve: Curve) -> dict[str, Any]:
    return {
        "losses": list(curve.losses),
        "scales_log2": [math.log2(scale) for scale in curve.scales],
        "skipped": list(curve.skipped),
    }


def _first_difference(rehearsed: Curve, real: Curve) -> str:
    for step, scales in enumerate(zip(rehearsed.scales, real.scales, strict=True)):
        if scales[0] != scales[1]:
            exponents = " and ".join(f"2**{math.log2(scale):g}" for scale in scales)
            return f"from step {step} on the scales are {exponents}; skipped {rehearsed.skipped} and {real.skipped}"
    if rehearsed.skipped != real.skipped:
        return f"skipped {rehearsed.skipped} and {real.skipped}"
    return f"the same in all {len(real.scales)} steps, {len(real.skipped)} of them skipped"
