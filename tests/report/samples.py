# SPDX-License-Identifier: Apache-2.0
"""Recordings, rehearsals and predictions built by hand, small enough to know every number of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from floatwise.plan import recipe
from floatwise.planner.decision import Predicted, Rehearsal
from floatwise.probe.recording import Recording, Site
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import GradientRow, LossRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.memory_prediction import MemoryPrediction
from floatwise.rehearse.roofline import SpeedPrediction, StepSeconds
from floatwise.rehearse.verdict import FoundIsland, TriedIsland
from floatwise.stats import TensorSummary, summarise

LAYERS = tuple(f"layers.{index}" for index in range(4))
ROLES = ("input", "output", "grad_output")
PARAMETER_ROLES = ("weight", "weight_grad", "update")


def summary(exponents: Mapping[int, int], zeros: int = 0, nonfinite: int = 0) -> TensorSummary:
    """Returns a summary with so many values of each power of two, zeros, and infinities."""
    values = [2.0**exponent for exponent, count in exponents.items() for _ in range(count)]
    return summarise(np.array([*values, *[0.0] * zeros, *[math.inf] * nonfinite], dtype=np.float32))


def recording(paths: Iterable[str] = LAYERS, **changes: Any) -> Recording:
    """Returns a recording of linear modules with 100 values in each role, 10 of them zero."""
    modules = tuple(paths)
    summaries = {}
    for number, path in enumerate(modules):
        shift = number % 3
        for role in ROLES:
            top = (-20 if role == "grad_output" else 0) - shift
            summaries[path, role] = summary({top - 6: 10, top: 60, top + 2: 20}, zeros=10)
        for role in PARAMETER_ROLES:
            top = {"weight": -3, "weight_grad": -16, "update": -12}[role] - shift
            summaries[f"{path}.weight", role] = summary({top: 70, top + 1: 20}, zeros=10)
    sites = tuple(
        Site(path, "Linear", "", True, calls=1, m=8, n=8, k=8, flops=1024, weights=(f"{path}.weight",))
        for path in modules
    )
    base = Recording(
        script="train.py",
        arguments=(),
        steps=8,
        device="cpu",
        parameters=256,
        parameter_dtype="float32",
        optimizers=("Adam",),
        losses=tuple(3.0 - step / 4 for step in range(8)),
        matrix_share=0.8,
        sites=sites,
        found=(),
        summaries=summaries,
    )
    return replace(base, **changes)


def gradient(
    parameter: str, sqnr_db: float | None = 30.0, required_db: float | None = 10.0, **changes: Any
) -> GradientRow:
    """Returns a gradient that is as good as required, changed as asked."""
    base = GradientRow(parameter, sqnr_db, 0.999, required_db, 90.0, 0.1, 0.1, 0.02, 0.01)
    return replace(base, **changes)


def comparison(recipe_name: str = "fp16-mixed", offset: float = 0.01, **changes: Any) -> Comparison:
    """Returns eight steps that stay within 0.2 of float32, changed as asked."""
    rows = tuple(
        LossRow(step, 3.0 - step / 4, 3.0 - step / 4 + offset, abs(offset), 0.1, 30.0 if step < 4 else None)
        for step in range(8)
    )
    gradients = tuple(gradient(f"{path}.weight", 20.0 + 5 * index) for index, path in enumerate(LAYERS))
    base = Comparison(
        recipe=recipe_name,
        problems=(),
        remarks=(),
        losses=rows,
        final_losses=(1.75, 1.75 + offset),
        tolerance=0.2,
        spread_source="seeds",
        gradients=gradients,
        modules=(),
        first_nonfinite=None,
        loss_scale=2.0**13,
        settling_skips=0,
        skipped_steps=1,
    )
    return replace(base, **changes)


def rehearsal(recipe_name: str = "fp16-mixed", **changes: Any) -> Rehearsal:
    """Returns a rehearsal that passes, changed as asked."""
    seen = comparison(recipe_name)
    base = Rehearsal("accept", recipe(recipe_name), (), (), (), seen, seen, ())
    return replace(base, **changes)


def rehearsal_with_island(recipe_name: str = "fp16-mixed", module: str = "layers.1") -> Rehearsal:
    """Returns a rehearsal that fails as it is and passes with one module in float32."""
    reason = Evidence("largest_values", {"module": module, "amax": "7.1e+04"})
    problem = Evidence("loss_not_finite", {"loss": "nan", "step": 3})
    bad = tuple(
        replace(row, sqnr_db=-math.inf, cosine=None) if row.parameter.startswith(module) else row
        for row in comparison().gradients
    )
    broken = replace(comparison(recipe_name).losses[2], rehearsed=math.nan, distance=math.nan)
    first = comparison(
        recipe_name,
        problems=(problem,),
        gradients=bad,
        losses=(*comparison().losses[:2], broken),
        final_losses=(1.75, math.nan),
    )
    tried = (TriedIsland("layers.0", reason, "no_help"), TriedIsland(module, reason, "passes"))
    advice = Evidence("sum_in_float32", {"module": module, "operator": "sum"})
    islands = (FoundIsland(module, reason, 0.031),)
    plan, last = recipe(recipe_name), comparison(recipe_name)
    return Rehearsal("accept_with_islands", plan, islands, (problem,), (advice,), first, last, tried)


def memory(**kinds: int) -> MemoryPrediction:
    """Returns a predicted peak made of the given kinds, in bytes."""
    names = "weights masters gradients optimizer casts activations inputs update exchange".split()
    sizes = {f"{name}_bytes": kinds.get(name, 0) for name in names}
    return MemoryPrediction(**sizes, peak_bytes=sum(sizes.values()), phase="backward")


MIB = 2**20


def predicted(**changes: Any) -> Predicted:
    """Returns predictions in which the plan is faster and smaller, changed as asked."""
    speed = SpeedPrediction("nvidia-t4", 2.5, 1.2, 4.1, step_seconds(0.04), step_seconds(0.1))
    small = memory(weights=10 * MIB, gradients=10 * MIB, optimizer=20 * MIB, casts=5 * MIB, activations=15 * MIB)
    large = memory(weights=10 * MIB, gradients=10 * MIB, optimizer=20 * MIB, activations=30 * MIB)
    return replace(Predicted(speed, small, large, True), **changes)


def step_seconds(seconds: float) -> StepSeconds:
    """Returns a step of so many seconds."""
    return StepSeconds(seconds, seconds, seconds / 10, seconds / 2, 0.5)
