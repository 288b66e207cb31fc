# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.samples import MIB, predicted, rehearsal_with_island

from floatwise.planner.decision import Decision, LossParity, LossScaleChoice, RoleRow, Verdict
from floatwise.planner.decision_json import decision_to_json, json_value
from floatwise.planner.reasons import Reason

Decide = Callable[..., Decision]

_KEYS = {
    "": "recipe target target_name here script steps parameters matrix_share reasons loss_scale islands "
    "verdicts measured findings evidence",
    "measured": "recipe device steps speed_ratio speed_spread memory_ratio planned_bytes float32_bytes step_seconds "
    "losses loss_parity products",
    "loss_parity": "within_spread planned float32 spread",
    "reason": "code text data",
    "island": "module reason code",
    "finding": "severity where code text",
    "verdict": "status reasons islands loss_scale rehearsal predicted",
    "predicted": "speed memory float32_memory memory_ratio fits",
    "loss_scale": "window_log2 initial largest",
    "evidence": "role format amax worst_module underflow_share overflow_share sqnr_db",
}


def _assert_keys(value: dict[str, Any], name: str) -> None:
    assert list(value) == _KEYS[name].split()


@pytest.mark.usefixtures("language")
def test_keys(decide: Decide) -> None:
    made = decision_to_json(decide(loss_scale=LossScaleChoice((6, 23), 8192.0, "lm_head")))
    _assert_keys(made, "")
    _assert_keys(made["measured"], "measured")
    _assert_keys(made["measured"]["loss_parity"], "loss_parity")
    _assert_keys(made["reasons"][0], "reason")
    _assert_keys(made["islands"][0], "island")
    _assert_keys(made["findings"][0], "finding")
    _assert_keys(made["loss_scale"], "loss_scale")
    _assert_keys(made["evidence"][0], "evidence")
    assert list(made["verdicts"]) == [verdict.recipe for verdict in decide().verdicts]
    for verdict in made["verdicts"].values():
        _assert_keys(verdict, "verdict")


@pytest.mark.usefixtures("language")
def test_rehearsals_and_predictions_are_in_it(decide: Decide) -> None:
    verdict = Verdict("fp16-mixed", "chosen", (), rehearsal=rehearsal_with_island(), predicted=predicted())
    made = decision_to_json(decide(verdicts=(verdict,)))["verdicts"]["fp16-mixed"]
    _assert_keys(made["predicted"], "predicted")
    assert made["rehearsal"]["status"] == "accept_with_islands"
    assert made["rehearsal"]["islands"][0]["module"] == "layers.1"
    assert (made["predicted"]["speed"]["ratio"], made["predicted"]["speed"]["predicted"]) == (2.5, True)
    assert made["predicted"]["memory"]["peak_bytes"] == 60 * MIB
    json.dumps(made, allow_nan=False)
    bare = decision_to_json(decide(verdicts=(Verdict("fp16-mixed", "chosen", ()),)))["verdicts"]["fp16-mixed"]
    assert (bare["rehearsal"], bare["predicted"]) == (None, None)


@pytest.mark.usefixtures("language")
def test_values_survive_json(decide: Decide) -> None:
    made = decide(loss_scale=LossScaleChoice((6, 23), 8192.0, "lm_head")).to_json()
    read = json.loads(json.dumps(made, allow_nan=False))
    assert read == made
    assert read["loss_scale"] == {"window_log2": [6, 23], "initial": 8192.0, "largest": "lm_head"}
    assert read["measured"]["step_seconds"] == [0.0364, 0.0841]
    assert read["verdicts"]["fp16-mixed"]["reasons"][0]["data"]["amax"] == 71200.0


def test_absent_parts_are_null(decide: Decide) -> None:
    made = decide(measured=None).to_json()
    assert made["measured"] is None
    assert made["loss_scale"] is None


def test_what_is_not_finite_is_null(decide: Decide) -> None:
    measured = decide().measured
    assert measured is not None
    broken = replace(
        measured,
        speed_spread=(math.nan, math.inf),
        losses={"planned": (1.0, math.nan), "float32": (-math.inf,)},
        loss_parity=LossParity(False, math.nan, (2.0,), (1.9, 2.1)),
    )
    row = RoleRow("output", "float16", math.inf, "head", 0.0, 0.1, None)
    reason = Reason("test_hostile", {"text": math.nan})
    made = decide(measured=broken, evidence=(row,), reasons=(reason,)).to_json()
    json.dumps(made, allow_nan=False)
    assert made["measured"]["losses"] == {"planned": [1.0, None], "float32": [None]}
    assert made["measured"]["loss_parity"]["planned"] is None
    assert made["evidence"][0]["amax"] is None
    assert made["reasons"][0]["data"] == {"text": None}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.float64("nan"), None),
        (True, True),
        ((1, 2.0), [1, 2.0]),
        ({"b", "a"}, ["a", "b"]),
        ({1: (math.inf,)}, {"1": [None]}),
        (Path("a"), "a"),
        (None, None),
    ],
)
def test_json_value(value: object, plain: object) -> None:
    made = json_value(value)
    assert made == plain
    assert type(made) is type(plain)
