# SPDX-License-Identifier: Apache-2.0
"""Failures that a finite loss hides are found in the recorded values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.planner.recordings import make_recording, normal

from floatwise.planner.silent_failures import silent_failures
from floatwise.stats import TensorSummary, summarise

WEIGHT = "blocks.0.ffn.wi.weight"
ZEROS = summarise(np.zeros(100, np.float32))
TWICE = ZEROS + ZEROS


def infinite() -> TensorSummary:
    return summarise(np.array([1.0, math.inf], np.float32))


@pytest.mark.parametrize(
    ("gradient", "update", "code"),
    [
        (normal(1e-3), None, None),
        (normal(1e-3), normal(1e-4), None),
        (normal(1e-3), ZEROS, None),  # a first update of a warm-up
        (normal(1e-3), TWICE, "weights_still"),
        (ZEROS, TWICE, "hidden_zero"),
        (infinite(), None, "hidden_nonfinite"),
    ],
)
def test_what_a_finite_loss_hides(gradient: TensorSummary, update: TensorSummary | None, code: str | None) -> None:
    recording = make_recording()
    summaries = {**recording.summaries, (WEIGHT, "weight_grad"): gradient}
    if update is not None:
        summaries[WEIGHT, "update"] = update
    changed = make_recording(summaries=summaries)
    assert [(f.reason.code, f.where) for f in silent_failures(changed)] == ([] if code is None else [(code, WEIGHT)])


def test_a_loss_that_is_not_finite_hides_nothing() -> None:
    summaries = {(WEIGHT, "weight_grad"): infinite()}
    assert not list(silent_failures(make_recording(summaries=summaries, losses=(1.0, math.nan))))


def test_many_paths_are_counted() -> None:
    summaries = {(f"l{n}.weight", "weight_grad"): ZEROS for n in range(5)}
    (found,) = silent_failures(make_recording(summaries=summaries))
    assert found.reason.data == {"paths": "l0.weight, l1.weight, l2.weight, … (+2)", "count": 5}
