# SPDX-License-Identifier: Apache-2.0
"""Decisions that know of rehearsals: confirmed, with islands, refused; predicted speed and memory."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.planner.recordings import make_recording, site
from tests.planner.rehearsals import make_record, make_rehearsal, make_rehearsed

from floatwise.errors import BadFileError
from floatwise.hardware import get_device
from floatwise.plan import policy_for, recipe
from floatwise.planner import decide
from floatwise.planner.candidates import plans_to_rehearse
from floatwise.planner.decision import Decision, Verdict
from floatwise.planner.rehearsed import Rehearsed, read_rehearsed, with_rehearsed
from floatwise.probe.recording import load_recording, save_recording


def decided(device: str, rehearsed: Rehearsed | None = None, **fields: Any) -> Decision:
    return decide(make_recording(**fields), get_device(device), here=False, wanted_steps=20, rehearsed=rehearsed)


def verdict(decision: Decision, name: str) -> Verdict:
    return next(v for v in decision.verdicts if v.recipe == name)


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


def test_a_rehearsal_that_passes_is_the_first_reason() -> None:
    decision = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed")))
    assert decision.recipe == "bf16-mixed"
    assert decision.reasons[0].code == "rehearsal_passes"
    assert decision.verdict.rehearsal is not None


def test_islands_that_the_rehearsal_needs_are_in_the_plan() -> None:
    rehearsal = make_rehearsal("fp16-mixed", "accept_with_islands", ["blocks.0.ffn.wo"])
    decision = decided("t4", make_rehearsed(rehearsal))
    assert (decision.recipe, [i.module for i in decision.islands]) == ("fp16-mixed", ["blocks.0.ffn.wo"])
    assert policy_for(decision.plan, "blocks.0.ffn.wo").compute_dtype == "float32"
    assert policy_for(decision.plan, "blocks.0.ffn.wi").compute_dtype == "float16"
    assert codes(decision)[:2] == ["rehearsal_passes_with_islands", "rehearsal_island"]
    assert "12 %" in str(decision.reasons[1])
    assert "mm in blocks.0.ffn.wo" in str(decision.reasons[1])
    (advice,) = [f for f in decision.findings if f.reason.code == "rehearsal_advice"]
    assert advice.where == "blocks.0.ffn.wo"


def test_an_island_inside_another_is_not_listed_twice() -> None:
    values = {("blocks.0.ffn.wo", "output"): 3e4}  # an island by its values already
    rehearsal = make_rehearsal("fp16-mixed", "accept_with_islands", ["blocks.0"])
    assert [i.module for i in decided("t4", make_rehearsed(rehearsal), values=values).islands] == ["blocks.0"]


def test_a_refused_recipe_makes_room_for_the_next() -> None:
    decision = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed", "refuse")))
    assert decision.recipe == "fp16-mixed"
    refused = verdict(decision, "bf16-mixed")
    assert (refused.status, refused.reasons[0].code) == ("refused", "rehearsal_refused")


def test_where_all_are_refused_float32_remains_and_says_why() -> None:
    rehearsals = [make_rehearsal("bf16-mixed", "refuse"), make_rehearsal("fp16-mixed", "refuse")]
    decision = decided("a100", make_rehearsed(*rehearsals))
    assert decision.recipe == "tf32"
    assert "rehearsal_refused" in codes(decision)
    assert "forward_fits" not in codes(decision), "nothing that spoke for them"


def test_a_script_that_fails_under_a_recipe_refuses_it() -> None:
    decision = decided("a100", make_rehearsed(failures={"bf16-mixed": "train.py:7: RuntimeError: no"}))
    assert decision.recipe == "fp16-mixed"
    assert "train.py:7" in str(verdict(decision, "bf16-mixed").reasons[0])


def test_a_script_that_cannot_be_rehearsed_is_judged_by_its_values() -> None:
    decision = decided("a100", Rehearsed(impossible="train.py:3: RuntimeError: no modes"))
    assert decision.recipe == "bf16-mixed"
    assert [f.reason.code for f in decision.findings if f.severity == "warning"] == ["rehearsal_impossible"]


@pytest.mark.parametrize(
    ("flops", "launches", "recipe", "finding"),
    [
        (1e13, 100, "bf16-mixed", None),  # products decide
        (2e11, 3000, "bf16-mixed", "launch_bound_tf32"),  # at the device's best it would be faster
        (1e6, 3000, "fp32", None),  # never
    ],
)
def test_predicted_speed(flops: float, launches: int, recipe: str, finding: str | None) -> None:
    records = {name: make_record(name, flops=flops, launches=launches) for name in ("fp32", "bf16-mixed")}
    decision = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed"), step_records=records))
    assert decision.recipe == recipe
    warned = {f.reason.code for f in decision.findings if "launch" in f.reason.code}
    assert warned == ({finding} if finding else set())
    if recipe == "fp32":
        assert "predicted_not_faster" in codes(decision)
        assert verdict(decision, "fp16-mixed").status == "not_worth_it", "as fast as bfloat16 there"


def test_prediction_by_hand() -> None:
    records = {name: make_record(name, flops=1e13, launches=0) for name in ("fp32", "bf16-mixed")}
    predicted = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed"), step_records=records)).verdict.predicted
    assert predicted is not None
    assert predicted.speed is not None
    assert predicted.speed.ratio == pytest.approx(312 / 19.5, rel=0.01), "peak rates of the row, products alone"
    # 10^8 weights with two slots of Adam: 1.6 GB; activations halve.
    assert predicted.float32_memory.peak_bytes == pytest.approx(4e8 + 8e8 + 2e9, rel=0.01)
    assert predicted.memory.peak_bytes == pytest.approx(4e8 + 8e8 + 1e9, rel=0.01)
    assert predicted.fits is True


def test_a_cpu_has_predicted_memory_and_no_predicted_speed() -> None:
    predicted = decided("cpu-amx-bf16", make_rehearsed(make_rehearsal("bf16-mixed"))).verdict.predicted
    assert predicted is not None
    assert (predicted.speed, predicted.fits) == (None, None)


def test_masters_are_chosen_where_only_they_fit() -> None:
    rehearsals = [make_rehearsal("bf16-mixed"), make_rehearsal("bf16-master")]
    activations = {"fp32": 180e9, "bf16-mixed": 180e9, "bf16-master": 160e9}  # as in float32: 16 bits take half
    records = {name: make_record(name, activations=size) for name, size in activations.items()}
    decision = decided("a100", make_rehearsed(*rehearsals, step_records=records))  # 80 GiB: 86e9 bytes
    assert decision.recipe == "bf16-master"
    assert decision.reasons[0].code == "fits_with_masters"
    assert [f.reason.code for f in decision.findings if f.severity == "warning"] == []


def test_what_does_not_fit_is_warned_of() -> None:
    records = {name: make_record(name, activations=1e12) for name in ("fp32", "bf16-mixed")}
    decision = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed"), step_records=records))
    (warning,) = [f for f in decision.findings if f.reason.code == "predicted_out_of_memory"]
    assert "activation checkpointing" in str(warning.reason)
    assert "466 GiB" in str(warning.reason)  # 5e11 bytes of activations


@pytest.mark.parametrize(
    ("device", "recipes"),
    [
        ("t4", ["fp16-mixed"]),
        ("a100", ["bf16-mixed"]),
        ("h100", ["bf16-mixed", "fp8-tensorwise", "fp8-rowwise"]),
        ("GTX 1080", []),
    ],
)
def test_candidates(device: str, recipes: list[str]) -> None:
    sites = (site("a"), site("b"))
    row = get_device(device)
    decision = decide(make_recording(sites=sites), row, here=False, wanted_steps=20)
    assert [plan.recipe for plan in plans_to_rehearse([(decision, row)], Rehearsed())] == recipes


def test_nothing_is_rehearsed_twice() -> None:
    row = get_device("a100")
    known = make_rehearsed(make_rehearsal("bf16-mixed"))
    decision = decide(make_recording(), row, here=False, wanted_steps=20, rehearsed=known)
    assert plans_to_rehearse([(decision, row)], known) == []


def test_float8_is_offered_where_linear_layers_take_it() -> None:
    decision = decided("h100", sites=(site("a"), site("odd", n=103)))
    offered = verdict(decision, "fp8-rowwise")
    assert offered.status == "accepted"
    (reason,) = [r for r in offered.reasons if r.code == "float8_elsewhere"]
    assert reason.data["share"] == "50 %"
    assert decision.recipe == "bf16-mixed"


def test_rehearsals_are_read_back_equal_from_the_recording(tmp_path: Path) -> None:
    island = make_rehearsal("fp16-mixed", "accept_with_islands", ["blocks.0.ffn.wo"])
    known = make_rehearsed(
        make_rehearsal("bf16-mixed"), island, make_rehearsal("bf16-master", "refuse"), failures={"fp8-rowwise": "no"}
    )
    known = replace(known, other_losses=((3.0, math.inf),), spread_source="permuted_reductions")
    save_recording(with_rehearsed(make_recording(), known), tmp_path / "x.recording")
    read = read_rehearsed(load_recording(tmp_path / "x.recording"))
    assert read == known
    assert json.loads(json.dumps(read.to_json(), allow_nan=True)) == json.loads(json.dumps(known.to_json()))


def test_a_recording_without_rehearsals_has_none() -> None:
    assert read_rehearsed(make_recording()) == Rehearsed()


@pytest.mark.parametrize(
    "damage",
    [{"losses": 3}, {"rehearsals": {"bf16-mixed": {"plan": "recipe = 1", "verdict": {}}}}, {"rehearsals": []}],
)
def test_damaged_rehearsals_are_a_clear_error(damage: dict[str, Any]) -> None:
    values = {**make_rehearsed(make_rehearsal("bf16-mixed")).to_json(), **damage}
    with pytest.raises(BadFileError, match=r"^x\.recording: damaged recording: its rehearsals cannot be read"):
        read_rehearsed(make_recording(rehearsed=values), "x.recording")


def test_evidence_read_back_speaks_the_current_language(monkeypatch: pytest.MonkeyPatch) -> None:
    known = make_rehearsed(make_rehearsal("fp16-mixed", "refuse"))
    read = Rehearsed.from_json(json.loads(json.dumps(known.to_json())))
    (_, reason) = read.verdicts["fp16-mixed"].reasons
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    assert "forward pass" in str(reason)
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    assert "前向传播" in str(reason)


def test_a_decision_with_rehearsals_is_plain_json() -> None:
    rehearsals = [make_rehearsal("bf16-mixed"), make_rehearsal("fp16-mixed", "refuse")]
    values = json.loads(json.dumps(decided("a100", make_rehearsed(*rehearsals)).to_json(), allow_nan=False))
    chosen = values["verdicts"]["bf16-mixed"]
    assert chosen["rehearsal"]["status"] == "accept"
    assert chosen["predicted"]["speed"]["predicted"] is True
    assert chosen["predicted"]["memory"]["peak_bytes"] > 0
    assert values["verdicts"]["tf32"]["rehearsal"] is None
    assert recipe("bf16-mixed").recipe in values["verdicts"]


def test_float8_is_refused_where_no_linear_layer_takes_it() -> None:
    refused = verdict(decided("h100", sites=(site("odd", n=103),)), "fp8-tensorwise")
    assert (refused.status, refused.reasons[0].code) == ("refused", "no_float8_layers")


@pytest.mark.parametrize(
    "evidence",
    [{"code": "nope", "data": {}}, {"code": "loses_precision", "data": {}}, {"code": "first_nonfinite", "data": []}],
)
def test_evidence_that_is_none_is_a_damaged_recording(evidence: dict[str, Any]) -> None:
    values = make_rehearsed(make_rehearsal("bf16-mixed")).to_json()
    values["rehearsals"]["bf16-mixed"]["verdict"]["comparison"]["remarks"].append(evidence)
    with pytest.raises(BadFileError, match="rehearsals cannot be read"):
        read_rehearsed(make_recording(rehearsed=json.loads(json.dumps(values))))


def test_nothing_is_predicted_for_recurrent_layers_and_that_is_said() -> None:
    sites = (site("a"), site("lstm", kind="LSTM", matrix=False))
    decision = decided("a100", make_rehearsed(make_rehearsal("bf16-mixed")), sites=sites)
    assert decision.recipe == "bf16-mixed"
    assert decision.verdict.predicted is None
    assert "recurrent_not_predicted" in {finding.reason.code for finding in decision.findings}


def test_a_recipe_that_was_not_rehearsed_among_others_that_were_is_pointed_out() -> None:
    decision = decided("a100", make_rehearsed(make_rehearsal("fp16-mixed")))
    assert decision.recipe == "bf16-mixed"
    (warning,) = [f for f in decision.findings if f.reason.code == "not_rehearsed"]
    assert "--target nvidia-a100" in str(warning.reason)
