# SPDX-License-Identifier: Apache-2.0
"""Losses under a plan held against float32 runs: what Keras and JAX scripts are rehearsed by."""

from __future__ import annotations

import math

import pytest

from floatwise.plan import dumps_plan, recipe
from floatwise.planner.decision import Rehearsal
from floatwise.planner.rehearse_natively import compared
from floatwise.planner.rehearsed import Rehearsed

FLOAT32 = [
    [3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.6],
    [3.1, 2.1, 1.1, 0.8, 0.9, 0.6, 0.7],
    [2.9, 1.9, 0.9, 1.0, 0.7, 0.8, 0.5],
]


@pytest.mark.parametrize(
    ("losses", "skipped", "problems"),
    [
        ([3.0, 2.0, 1.01, 0.91, 0.79, 0.71, 0.6], 0, []),
        ([3.0, 2.0, 1.01, 0.91, 0.79, 0.71, 0.6], 3, []),
        ([3.0, 2.0, 1.01, 0.91, 0.79, 0.71, 0.6], 4, ["most_steps_skipped"]),
        ([3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], 0, ["loss_outside_seeds"]),
        ([3.0, math.nan, 1.0], 0, ["loss_not_finite"]),
        ([3.0, math.inf], 0, ["loss_not_finite"]),
        ([3.0, 2.0, 1.0, 0.9, 0.8, 0.7], 0, ["loss_outside_seeds"]),
        ([0.8, 0.8, 0.8, 0.8, 0.8], 0, ["ended_early"]),
        ([], 0, ["ended_early"]),
    ],
)
def test_losses_are_judged_by_the_spread_of_seeds(losses: list[float], skipped: int, problems: list[str]) -> None:
    comparison = compared(recipe("bf16-mixed"), losses, skipped, FLOAT32)
    assert [evidence.code for evidence in comparison.problems] == problems
    assert all(str(evidence) for evidence in comparison.problems)
    assert len(comparison.losses) == len(losses)


def test_a_row_says_how_far_apart_a_step_is() -> None:
    row = compared(recipe("fp16-mixed"), [3.5], 0, FLOAT32).losses[0]
    assert (row.step, row.float32, row.rehearsed, row.distance) == (0, 3.0, 3.5, 0.5)
    assert row.spread == pytest.approx(0.2)


def test_a_rehearsal_is_kept_in_a_recording() -> None:
    plan = recipe("fp16-mixed")
    comparison = compared(plan, FLOAT32[1], 1, FLOAT32)
    verdict = Rehearsal("accept", plan, (), (), (), comparison, comparison, ())
    known = Rehearsed().with_baseline(
        {"losses": FLOAT32[0], "other_losses": FLOAT32[1:], "spread_source": "seeds", "step_record": None}
    )
    known = known.with_verdict(plan.recipe, {"plan": dumps_plan(plan), "verdict": verdict.to_json()})
    assert Rehearsed.from_json(known.to_json()) == known
    assert known.verdicts[plan.recipe].last == comparison
