# SPDX-License-Identifier: Apache-2.0
"""Rehearsals built by hand: what the comparison of a small model's runs might have shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from floatwise.plan import Plan, recipe
from floatwise.planner.rehearsed import Rehearsed
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.comparison_rows import GradientRow, LossRow, ModuleRow
from floatwise.rehearse.evidence import Evidence
from floatwise.rehearse.memory_curve import MemoryRecord, Moment
from floatwise.rehearse.memory_states import WeightCounts
from floatwise.rehearse.nonfinite import NonFinite
from floatwise.rehearse.roofline import Operator
from floatwise.rehearse.step_record import StepRecord
from floatwise.rehearse.verdict import FoundIsland, Status, TriedIsland, Verdict

OVERFLOW = NonFinite("blocks.0.ffn.wo", "mm", 0, "forward", 0, 12, "inf", "float16", 300.0, true_amax=9e4)


def make_comparison(plan: Plan, *, passes: bool = True, parameters: Sequence[str] = ("head.weight",)) -> Comparison:
    """Returns three steps held against float32; one that does not pass has an infinite product."""
    problem = Evidence("loss_not_finite", {"loss": "inf", "step": 0})
    losses = [(3.0, 3.01), (2.5, 2.52), (2.1, 2.11)] if passes else [(3.0, float("inf"))]
    gradients = [
        GradientRow(name, 45.0 - i if passes else -float("inf"), 0.999, 20.0, 120.0, 0.01, 0.0, 0.0, 0.0)
        for i, name in enumerate(parameters)
    ]
    return Comparison(
        recipe=plan.recipe,
        problems=() if passes else (problem,),
        remarks=(),
        losses=tuple(LossRow(i, a, b, abs(a - b), 0.1, 40.0) for i, (a, b) in enumerate(losses)),
        final_losses=(2.53, 2.55 if passes else float("inf")),
        tolerance=0.1,
        spread_source="seeds",
        gradients=tuple(gradients),
        modules=(ModuleRow("blocks.0.ffn.wo", 60.0, 55.0, 300.0),),
        first_nonfinite=None if passes else OVERFLOW,
        loss_scale=1.0 if plan.loss_scale is None else plan.loss_scale.initial_scale,
        settling_skips=0,
        skipped_steps=0,
    )


def make_rehearsal(name: str, status: Status = "accept", islands: Sequence[str] = ()) -> Verdict:
    """Returns what rehearsals of a recipe came to."""
    plan = recipe(name)
    found = tuple(FoundIsland(path, Evidence.of_nonfinite(OVERFLOW), 0.125) for path in islands)
    good, bad = make_comparison(plan), make_comparison(plan, passes=False)
    reasons = () if status == "accept" else (*bad.problems, Evidence.of_nonfinite(OVERFLOW))
    data = {"module": "blocks.0.ffn.wo", "operator": "mm", "before": "9e+04", "format": "float16", "limit": "65504"}
    return Verdict(
        status=status,
        plan=plan,
        islands=found,
        reasons=reasons,
        advice=() if status == "accept" else (Evidence("compute_in_float32", data),),
        first=good if status == "accept" else bad,
        last=bad if status == "refuse" else good,
        tried=tuple(TriedIsland(island.module, island.reason, "passes") for island in found),
    )


def make_record(name: str, *, flops: float = 1e12, launches: int = 100, activations: float = 2e9) -> StepRecord:
    """Returns a step of one kind of product and of element-wise operators.

    Args:
      name: Recipe; its compute format is that of the products, and halves the activations.
      flops: Of all products together.
      launches: Element-wise operators.
      activations: Bytes in float32.
    """
    plan = recipe(name)
    fmt = plan.compute_dtype
    share = 1.0 if fmt == "float32" else 0.5
    operators = (
        Operator("aten.mm", fmt, True, int(flops / 100), 10_000_000, 100),
        Operator("aten.add", fmt, False, 1000, 12_000, launches),
    )
    sixteen = plan.policy.param_dtype != "float32"
    counts: dict[str, Any] = {"trained_16_bit": 10**8} if sixteen else {"trained_float32": 10**8}
    weights = WeightCounts(**{"trained_16_bit": 0, "trained_float32": 0, **counts})
    moments = (Moment("backward", int(activations * share), 0, 0),)
    return StepRecord(name, MemoryRecord(moments, 0, 0, 2.0, weights), operators)


def make_rehearsed(*verdicts: Verdict, **fields: Any) -> Rehearsed:
    """Returns these rehearsals with records of the same steps, float32's included."""
    names = ["fp32", *(verdict.recipe for verdict in verdicts)]
    base: dict[str, Any] = {
        "losses": (3.0, 2.5, 2.1),
        "other_losses": ((3.1, 2.6, 2.2), (2.9, 2.4, 2.0)),
        "verdicts": {verdict.recipe: verdict for verdict in verdicts},
        "step_records": {name: make_record(name) for name in names},
    }
    return Rehearsed(**{**base, **fields})
