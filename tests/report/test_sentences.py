# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.report.samples import predicted, rehearsal

from floatwise.plan import recipe
from floatwise.planner.decision import Decision, LossParity, Measured, Verdict
from floatwise.report import proof, sentences

Decide = Callable[..., Decision]
_OUTSIDE = LossParity(False, 3.2, (2.1,), (2.0, 2.2))


@pytest.fixture
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")


def _measured(decide: Decide, **changes: Any) -> Measured:
    measured = decide().measured
    assert measured is not None
    return replace(measured, **changes)


@pytest.mark.usefixtures("english")
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "2.3× faster, 0.62× the memory, same loss"),
        ({"memory_ratio": None}, "2.3× faster, same loss"),
        ({"memory_ratio": 1.001}, "2.3× faster, same memory, same loss"),
        ({"loss_parity": None}, "2.3× faster, 0.62× the memory"),
        ({"loss_parity": _OUTSIDE}, "2.3× faster, 0.62× the memory, loss outside float32's own spread"),
        ({"speed_ratio": 1.01, "speed_spread": (0.98, 1.03)}, "same speed, 0.62× the memory, same loss"),
        ({"speed_ratio": 0.5, "speed_spread": (0.49, 0.52)}, "2.0× slower, 0.62× the memory, same loss"),
        (
            {
                "speed_ratio": math.nan,
                "speed_spread": (math.nan, math.nan),
                "memory_ratio": None,
                "loss_parity": None,
            },
            "not measured",
        ),
    ],
)
def test_headline_of_a_plan_run_here(decide: Decide, changes: dict[str, Any], outcome: str) -> None:
    decision = decide(measured=_measured(decide, **changes))
    assert sentences.headline(decision) == f"bf16-mixed on this machine: {outcome}"


@pytest.mark.usefixtures("english")
def test_headline_claims_nothing_that_was_not_run(decide: Decide) -> None:
    there = {"here": False, "target_name": "NVIDIA T4"}
    assert sentences.headline(decide(measured=None)) == "bf16-mixed on this machine: not measured"
    only_recorded = sentences.headline(decide(**there, measured=None))
    assert only_recorded == "bf16-mixed for NVIDIA T4: decided from the recording, not run there"
    rehearsed = sentences.headline(decide(**there))
    assert rehearsed == "bf16-mixed for NVIDIA T4: same loss when run here, speed there not measured"
    assert "2.3" not in rehearsed
    failed = sentences.headline(decide(**there, measured=_measured(decide, loss_parity=_OUTSIDE)))
    assert failed == "bf16-mixed for NVIDIA T4: loss differs from float32's when run here"


@pytest.mark.usefixtures("english")
def test_headline_says_what_was_rehearsed_and_predicted(decide: Decide) -> None:
    verdict = Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed"), predicted=predicted())
    there = {"here": False, "target_name": "NVIDIA T4", "verdicts": (verdict,)}
    promised = "predicted: 2.5× the speed, 0.86× the memory"
    assert sentences.outcome(decide(**there, measured=None)) == f"rehearsal passes; {promised}"
    assert sentences.outcome(decide(**there)) == f"same loss when run here; {promised}"
    cpu = replace(verdict, predicted=predicted(speed=None))
    here = decide(verdicts=(cpu,), measured=None)
    assert sentences.outcome(here) == "rehearsal passes; predicted: 0.86× the memory"
    assert sentences.outcome(decide(verdicts=(cpu,))) == "2.3× faster, 0.62× the memory, same loss"


@pytest.mark.usefixtures("english")
def test_headline_of_float32(decide: Decide) -> None:
    decision = decide(recipe="fp32", plan=recipe("fp32"), measured=None)
    assert sentences.headline(decision) == "fp32 on this machine: stay in float32"


@pytest.mark.usefixtures("language")
def test_recipe_comes_first_in_both_languages(decide: Decide) -> None:
    assert sentences.headline(decide()).startswith("bf16-mixed")
    assert sentences.headline(decide(here=False)).startswith("bf16-mixed")


@pytest.mark.usefixtures("language")
def test_proof_states_every_seed_and_the_spread(decide: Decide) -> None:
    parity = _measured(decide).loss_parity
    text = proof.parity_sentences(parity, "x")
    assert all(number in text for number in ("2.118", "2.121", "2.139", "2.106", "2.094", "2.151"))
    assert proof.parity_sentences(None, "x")
    assert text != proof.parity_sentences(_OUTSIDE, "x")


@pytest.mark.usefixtures("language")
def test_memory_row_only_when_memory_was_measured(decide: Decide) -> None:
    assert len(proof.saving_rows(_measured(decide))) == 2
    assert len(proof.saving_rows(_measured(decide, memory_ratio=None))) == 1


@pytest.mark.usefixtures("language")
def test_every_status_has_its_own_word() -> None:
    words = {sentences.status_word(status) for status in ("chosen", "accepted", "refused", "not_worth_it")}
    assert len(words) == 4
    assert "not_worth_it" not in words


@pytest.mark.usefixtures("language")
def test_unknown_roles_keep_their_name() -> None:
    assert sentences.role_name("weight_grad") != "weight_grad"
    assert sentences.role_name("other\n") == "other\\n"
