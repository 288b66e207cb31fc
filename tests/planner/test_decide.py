# SPDX-License-Identifier: Apache-2.0
"""Decisions for devices, from recordings built by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.planner.recordings import SITES, make_recording, site

from floatwise.hardware import DEVICES, get_device
from floatwise.plan import dumps_plan, loads_plan, policy_for
from floatwise.planner import decide, with_failure, with_measurement
from floatwise.planner.decision import Decision, LossParity, Measured
from floatwise.planner.reasons import REASONS, Reason
from floatwise.probe.recording import Stall


def verdict(decision: Decision, recipe: str) -> tuple[str, tuple[str, ...]]:
    found = next(v for v in decision.verdicts if v.recipe == recipe)
    return found.status, tuple(reason.code for reason in found.reasons)


@pytest.mark.parametrize(
    ("device", "recipe"),
    [
        ("nvidia-t4", "fp16-mixed"),
        ("nvidia-v100", "fp16-mixed"),
        ("RTX 2080 Ti", "fp16-mixed"),
        ("nvidia-a100", "bf16-mixed"),
        ("3090", "bf16-mixed"),
        ("nvidia-h100", "bf16-mixed"),
        ("MI300X", "bf16-mixed"),
        ("GTX 1660", "fp32"),
        ("GTX 1080", "fp32"),
        ("google-tpu-v5e", "bf16-mixed"),
        ("cpu-avx2", "fp32"),
        ("cpu-avx512-bf16", "bf16-mixed"),
        ("cpu-amx-bf16", "bf16-mixed"),
    ],
)
def test_healthy_model(device: str, recipe: str) -> None:
    decision = decide(make_recording(), get_device(device), here=False, wanted_steps=20)
    assert decision.recipe == decision.plan.recipe == recipe
    assert decision.islands == ()
    assert (decision.loss_scale is not None) == (recipe == "fp16-mixed")
    assert verdict(decision, recipe)[0] == "chosen"


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_gets_a_decision_that_can_be_written_and_read(device: str) -> None:
    decision = decide(make_recording(), DEVICES[device], here=False, wanted_steps=20)
    assert loads_plan(dumps_plan(decision.plan)) == decision.plan
    assert decision.reasons
    assert json.loads(json.dumps(decision.to_json(), allow_nan=False))["target"] == device


@pytest.mark.parametrize(
    ("device", "recipe", "code"),
    [
        ("nvidia-t4", "bf16-mixed", "no_matrix_unit"),
        ("nvidia-v100", "bf16-mixed", "no_matrix_unit"),
        ("nvidia-v100", "tf32", "no_matrix_unit"),
        ("GTX 1660", "fp16-mixed", "unreliable_format"),
        ("cpu-avx2", "bf16-mixed", "no_matrix_unit"),
        ("nvidia-a100", "fp8-tensorwise", "no_matrix_unit"),
        ("nvidia-t4", "bf16-master", "no_matrix_unit"),
    ],
)
def test_refusals_say_why(device: str, recipe: str, code: str) -> None:
    decision = decide(make_recording(), get_device(device), here=False, wanted_steps=20)
    status, codes = verdict(decision, recipe)
    assert status == "refused"
    assert codes[0] == code


@pytest.mark.parametrize(
    ("device", "recipe", "codes"),
    [
        ("nvidia-h100", "bf16-master", ("better_accepted", "has_matrix_unit", "master_split")),
        ("nvidia-t4", "fp16-master", ("better_accepted", "master_copy")),
    ],
)
def test_16_bit_weights_are_offered_and_not_chosen(device: str, recipe: str, codes: tuple[str, ...]) -> None:
    decision = decide(make_recording(), get_device(device), here=False, wanted_steps=20)
    status, said = verdict(decision, recipe)
    assert (status, said[: len(codes)]) == ("accepted", codes)
    assert decision.recipe != recipe
    assert "stalls" not in said


@pytest.mark.parametrize(
    ("values", "islands", "code"),
    [
        # Made between the products: the elementwise product of a gate overflows before `wo` sees it.
        (
            {("blocks.0.ffn.wo", "input"): 3e4},
            ("blocks.0.ffn.wi", "blocks.0.ffn.wo"),
            {"forward_overflow", "feeds_island"},
        ),
        ({("blocks.0.ffn.wo", "output"): 3e4}, ("blocks.0.ffn.wo",), "forward_overflow"),
        ({("blocks.0.ffn.wo", "output"): 4e3}, ("blocks.0.ffn.wo",), "forward_near_limit"),
        ({("head", "output"): 3e4}, ("head",), "forward_overflow"),
        # A product gave it: the product that gave it and the one that takes it stay in float32.
        (
            {("blocks.0.ffn.wi", "output"): 4e4, ("blocks.0.ffn.wo", "input"): 2e4},
            ("blocks.0.ffn.wi", "blocks.0.ffn.wo"),
            "forward_overflow",
        ),
    ],
)
def test_islands(values: Any, islands: tuple[str, ...], code: str | set[str]) -> None:
    recording = make_recording(values)
    decision = decide(recording, get_device("t4"), here=False, wanted_steps=20)
    assert decision.recipe == "fp16-mixed"
    assert tuple(island.module for island in decision.islands) == islands
    assert {island.reason.code for island in decision.islands} == (code if isinstance(code, set) else {code})
    for module in islands:
        assert policy_for(decision.plan, module).compute_dtype == "float32"
    assert decide(recording, get_device("a100"), here=False, wanted_steps=20).islands == ()


def test_too_many_islands_refuse_float16() -> None:
    values = {(s.path, "output"): 1e5 for s in SITES if s.matrix}
    decision = decide(make_recording(values), get_device("t4"), here=False, wanted_steps=20)
    assert decision.recipe == "fp32"
    assert "islands_too_large" in verdict(decision, "fp16-mixed")[1]
    assert "islands_too_large" in [reason.code for reason in decision.reasons]


def test_gradients_of_one_module_can_be_an_island() -> None:
    values = {("head", "grad_output"): 1e3, ("head.weight", "weight_grad"): 1e3, ("embed", "output"): 1.0}
    values |= {(s.path, "grad_output"): 1e-8 for s in SITES if s.matrix and s.path != "head"}
    decision = decide(make_recording(values), get_device("t4"), here=False, wanted_steps=20)
    assert [island.module for island in decision.islands] == ["head"]
    assert decision.islands[0].reason.code == "gradient_limits_window"


def test_too_wide_a_range_refuses_float16() -> None:
    spread = {"blocks.0.attention": 1e6, "blocks.0.ffn.wi": 1e3, "blocks.0.ffn.wo": 1e-9, "head": 1e-16}
    values = {(path, "grad_output"): d for path, d in spread.items()}
    decision = decide(make_recording(values), get_device("t4"), here=False, wanted_steps=20)
    assert decision.recipe == "fp32"
    assert verdict(decision, "fp16-mixed") == ("refused", ("window_narrow",))


def test_loss_scale_window_and_start() -> None:
    recording = make_recording()
    decision = decide(recording, get_device("t4"), here=False, wanted_steps=20)
    choice, plan = decision.loss_scale, decision.plan
    assert choice is not None
    assert plan.loss_scale is not None
    largest = max(
        s.amax for (_, role), s in recording.summaries.items() if role.endswith(("grad_output", "weight_grad"))
    )
    lo, hi = choice.window_log2
    assert largest * 2.0**hi < 65520 <= largest * 2.0 ** (hi + 1)
    assert lo < hi
    assert choice.initial == plan.loss_scale.initial_scale == 2.0 ** (hi - 3)
    assert plan.loss_scale.window_log2 == (lo, hi)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"losses": (5.0, math.nan, math.nan)}, "baseline_not_finite"),
        ({"losses": (5.0, math.inf)}, "baseline_not_finite"),
        ({"parameter_dtype": "float64"}, "float64_model"),
        ({"sites": tuple(s for s in SITES if not s.matrix)}, "no_products"),
        ({"sites": (site("tiny", m=8, n=4, k=4, flops=256),)}, "tiny_model"),
    ],
)
def test_what_no_precision_mends(fields: dict[str, Any], code: str) -> None:
    decision = decide(make_recording(**fields), get_device("a100"), here=False, wanted_steps=20)
    assert decision.recipe == "fp32"
    assert decision.reasons[0].code == code


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"found": (("found_autocast", "train.py:3", "bfloat16"),)}, {"found_autocast"}),
        ({"found": (("found_grad_scaler", "train.py:3", "GradScaler"),)}, {"found_grad_scaler"}),
        ({"found": (("found_deepspeed", "train.py:3", '"fp16": {}'),)}, {"found_deepspeed"}),
        ({"found": (("found_launcher", "", "torchrun"),)}, {"found_launcher"}),
        ({"matrix_share": 0.05}, {"small_matrix_share"}),
        ({"optimizers": ("update by hand",)}, {"update_by_hand"}),
        ({"steps": 3}, {"few_steps"}),
        ({"sites": (*SITES, site("x", "binary_cross_entropy", matrix=False))}, {"binary_cross_entropy"}),
        ({"sites": (*SITES, site("odd", n=103))}, {"unaligned"}),
    ],
)
def test_findings(fields: dict[str, Any], codes: set[str]) -> None:
    decision = decide(make_recording(**fields), get_device("a100"), here=False, wanted_steps=20)
    seen = {finding.reason.code for finding in decision.findings}
    assert seen - {"kept_in_float32"} == codes
    assert all(str(finding.reason) for finding in decision.findings)


def measured(speed: float, memory: float | None, parity: LossParity | None) -> Measured:
    losses = {"planned": (1.0, 0.9), "float32": (1.0, 0.9)}
    return Measured("bf16-mixed", "here", 10, speed, (speed, speed), memory, None, None, (1.0, speed), losses, parity)


INSIDE = LossParity(True, 1.0, (1.0, 1.1, 0.9), (0.8, 1.2))
OUTSIDE = replace(INSIDE, within_spread=False, planned=2.0)


@pytest.mark.parametrize(
    ("spread", "memory", "recipe", "code"),
    [
        ((1.0, 1.5), None, "bf16-mixed", "measured_faster"),
        ((0.9, 1.5), None, "fp32", "measured_unclear"),
        ((0.9, 1.5), 0.8, "bf16-mixed", "measured_faster"),
    ],
)
def test_a_gain_that_the_pairs_do_not_show_is_none(
    spread: tuple[float, float], memory: float | None, recipe: str, code: str
) -> None:
    recording, device = make_recording(), get_device("cpu-avx512-bf16")
    result = replace(measured(1.2, memory, INSIDE), speed_spread=spread)
    decision = with_measurement(decide(recording, device, True, 20), result, recording, device)
    assert (decision.recipe, decision.reasons[0].code) == (recipe, code)


@pytest.mark.parametrize(
    ("result", "recipe", "code"),
    [
        (measured(2.0, 0.8, INSIDE), "bf16-mixed", "measured_faster"),
        (measured(1.0, 0.8, INSIDE), "bf16-mixed", "measured_faster"),
        (measured(0.5, 0.6, INSIDE), "fp32", "measured_not_faster"),
        (measured(1.0, 1.0, INSIDE), "fp32", "measured_not_faster"),
        (measured(1.0, None, None), "fp32", "measured_not_faster"),
        (measured(2.0, 0.8, OUTSIDE), "fp32", "loss_outside"),
        (measured(2.0, 0.8, None), "bf16-mixed", "measured_faster"),
    ],
)
def test_measurement_has_the_last_word(result: Measured, recipe: str, code: str) -> None:
    recording, device = make_recording(), get_device("cpu-avx512-bf16")
    decision = with_measurement(decide(recording, device, True, 20), result, recording, device)
    assert decision.recipe == decision.plan.recipe == recipe
    assert decision.measured is result
    assert decision.reasons[0].code == code
    assert json.dumps(decision.to_json(), allow_nan=False)


def test_stalls_name_the_worst_parameter() -> None:
    stalls = (
        Stall("a.weight", 100, {"float16": 0, "bfloat16": 1}),
        Stall("norm.weight", 10, {"float16": 9, "bfloat16": 10}),
    )
    decision = decide(make_recording(stalls=stalls), get_device("a100"), here=False, wanted_steps=20)
    data = next(reason for reason in decision.reasons if reason.code == "stalls").data
    assert data == {"format": "bfloat16", "share": "10 %", "parameter": "norm.weight", "worst": "100 %"}


def test_sentences_in_both_languages_take_the_same_values() -> None:
    import string

    fields = {
        code: [{f for _, f, _, _ in string.Formatter().parse(t) if f} for t in (x.en, x.zh)]
        for code, x in REASONS.items()
    }
    for code, (en, zh) in fields.items():
        assert {f.removesuffix("_zh") for f in zh} == en, code
    assert str(Reason("baseline"))


@pytest.mark.parametrize(
    ("arithmetic", "amax", "code"),
    [
        (site("blocks.0.ffn:mul", "mul", matrix=False, sources=("blocks.0.ffn.wi",)), 3e4, "feeds_overflow"),
        (
            site("blocks.0.ffn:add", "add", matrix=False, sources=("blocks.0.ffn.wi",), constant=1e-9),
            1.0,
            "feeds_constant",
        ),
    ],
)
def test_what_is_computed_between_products(arithmetic: Any, amax: float, code: str) -> None:
    recording = make_recording({(arithmetic.path, "output"): amax}, sites=(*SITES, arithmetic))
    decision = decide(recording, get_device("t4"), here=False, wanted_steps=20)
    assert [(island.module, island.reason.code) for island in decision.islands] == [("blocks.0.ffn.wi", code)]
    assert decide(recording, get_device("a100"), here=False, wanted_steps=20).islands == ()


def test_failure_under_the_plan_falls_back_to_float32() -> None:
    recording, device = make_recording(), get_device("cpu-avx512-bf16")
    decision = with_failure(decide(recording, device, True, 20), "train.py:8: it failed", recording, device)
    assert decision.recipe == "fp32"
    assert verdict(decision, "bf16-mixed")[0] == "refused"
    assert "train.py:8" in str(decision.reasons[0])


@pytest.mark.parametrize(("framework", "said"), [("torch", None), ("keras", "model.quantize"), ("jax", "split_master")])
def test_recipes_that_a_frameworks_runtime_does_not_apply_are_refused(framework: str, said: str | None) -> None:
    decision = decide(make_recording(framework=framework), get_device("h100"), here=False, wanted_steps=20)
    refused = {v.recipe for v in decision.verdicts if v.reasons and v.reasons[0].code == "not_applied"}
    assert decision.recipe == "bf16-mixed"
    assert refused == (set() if said is None else {"bf16-master", "fp16-master", "fp8-tensorwise", "fp8-rowwise"})
    assert said is None or any(said in str(v.reasons[0]) for v in decision.verdicts)
