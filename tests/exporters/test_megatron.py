# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's flags written and read, and held against what its own parser has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.exporters.plans import plans
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import get_system
from floatwise.exporters.forms.flags_form import parse_flags
from floatwise.exporters.megatron.knobs import KNOBS
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.version import Version
from floatwise.plan import LossScale, Plan, Policy, Reductions, recipe

FACTS = json.loads((Path(__file__).parent / "megatron_arguments.json").read_text(encoding="utf-8"))
SCALE = LossScale(initial_scale=1024.0, floor=0.0625, growth_interval=500, hysteresis=2)


def flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


@pytest.mark.parametrize("key", KNOBS)
def test_every_row_is_as_megatrons_parser_has_it(key: str) -> None:
    knob, fact = KNOBS[key], FACTS["flags"][flag(key)]
    there = [v for v in FACTS["versions"] if Version.of(v).within(knob.since, knob.until)]
    assert there == fact["versions"]
    assert (knob.kind, knob.default) == (fact["kind"], fact["default"])
    # Optimizers have come and gone; only Adam matters here.
    assert list(knob.choices) == ([] if key == "optimizer" else fact["choices"])


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_every_flag_that_is_written_is_one_of_megatrons(plan: Plan) -> None:
    for version in FACTS["versions"]:
        written = parse_flags(exported(plan, "megatron", version=version).text).values
        assert all(version in FACTS["flags"][flag(name)]["versions"] for name in written)


@pytest.mark.parametrize(
    ("plan", "version", "text"),
    [
        (recipe("fp32"), "0.19.0", "# Megatron-LM trains in float32 unless a flag says otherwise.\n"),
        (recipe("bf16-mixed"), "0.19.0", "--bf16\n--accumulate-allreduce-grads-in-fp32\n"),
        (
            recipe("bf16-master", reductions=Reductions(reduce_dtype="bfloat16", accumulate_dtype="bfloat16")),
            "0.19.0",
            "--bf16\n--grad-reduce-in-bf16\n--use-distributed-optimizer\n--use-precision-aware-optimizer\n",
        ),
        (recipe("bf16-master"), "0.12", "--bf16\n--accumulate-allreduce-grads-in-fp32\n"),
        (
            recipe("fp16-mixed", loss_scale=SCALE),
            "0.19.0",
            "--fp16\n--accumulate-allreduce-grads-in-fp32\n--initial-loss-scale 1024\n--min-loss-scale 0.0625\n"
            "--loss-scale-window 500\n--hysteresis 2\n",
        ),
        (
            recipe("fp16-master", loss_scale=LossScale(mode="static", initial_scale=128.0)),
            "0.19.0",
            "--fp16\n--accumulate-allreduce-grads-in-fp32\n--loss-scale 128\n",
        ),
        (
            recipe("fp8-tensorwise"),
            "0.19.0",
            "--bf16\n--accumulate-allreduce-grads-in-fp32\n--fp8-format hybrid\n--fp8-recipe tensorwise\n",
        ),
        (
            recipe("fp8-rowwise"),
            "0.19.0",
            "--bf16\n--accumulate-allreduce-grads-in-fp32\n--fp8-format e4m3\n--fp8-recipe blockwise\n",
        ),
        (
            recipe("fp8-rowwise"),
            "0.12",
            "--bf16\n--accumulate-allreduce-grads-in-fp32\n--fp8-format hybrid\n--fp8-recipe tensorwise\n",
        ),
        (
            recipe("mxfp8"),
            "0.19.0",
            "--bf16\n--accumulate-allreduce-grads-in-fp32\n--fp8-format e4m3\n--fp8-recipe mxfp8\n",
        ),
    ],
)
def test_the_flags_are_as_expected(plan: Plan, version: str, text: str) -> None:
    assert exported(plan, "megatron", version=version).text == text


def test_the_cast_of_the_model_is_said() -> None:
    lost = said(exported(recipe("bf16-mixed"), "megatron"))
    assert lost["policy.param_dtype"].startswith("The model itself is cast: weights are stored in bfloat16")
    assert lost["reductions.buffer_dtype"] == "Buffers are cast with the model, to bfloat16."


def test_amds_float8_is_refused() -> None:
    with pytest.raises(PlanError, match="have no e4m3fnuz"):
        exported(recipe("fp8-tensorwise", policy=Policy(compute_dtype="float8_e4m3fnuz")), "megatron")


def test_a_dynamic_scale_is_read_exactly() -> None:
    plan = exported(recipe("fp16-mixed", loss_scale=SCALE), "megatron").reading.plan
    scale = plan.loss_scale
    assert scale is not None
    assert (scale.initial_scale, scale.floor, scale.growth_interval, scale.hysteresis) == (1024.0, 0.0625, 500, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "--bf16",
            {"policy.param_dtype": "bfloat16", "weights.master": "float32", "reductions.reduce_dtype": "float32"},
        ),
        ("--fp16 --initial-loss-scale 64", {"reductions.accumulate_dtype": "float16", "loss_scale.hysteresis": 2}),
        ("--bf16 --grad-reduce-in-bf16", {"reductions.accumulate_dtype": "bfloat16"}),
        (
            "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16",
            {"weights.master": "split", "reductions.reduce_dtype": "bfloat16"},
        ),
        ("--fp16 --loss-scale 8", {"loss_scale.mode": "static", "loss_scale.initial_scale": 8.0}),
        ("GPU=8\ntorchrun x.py --bf16 \\\n  --lr $LR )", {"policy.compute_dtype": "bfloat16"}),
        ("--fp16 --initial-loss-scale $SCALE", {"loss_scale.initial_scale": 2.0**32}),
    ],
)
def test_flags_mean_what_megatron_does_with_them(text: str, expected: dict[str, Any]) -> None:
    plan = reading(text, "megatron", "flags").plan.model_dump()
    for path, value in expected.items():
        table, key = path.split(".")
        assert plan[table][key] == value


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("--bf16", []),
        ("--fp16", ["high-first-scale"]),
        ("--fp8-format hybrid --fp8-recipe tensorwise", ["float8-over-float32"]),
        ("--bf16 --fp8-format hybrid", ["delayed-scaling"]),
        ("--bf16 --accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16", ["sums-in-bfloat16"]),
        ("--fp16 --initial-loss-scale 4 --grad-reduce-in-bf16", ["flag-without-effect"]),
        ("--fp16 --initial-loss-scale 4 --loss-scale-window 10.5", ["scale-never-grows"]),
        (
            "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-params-dtype fp16",
            ["float16-master"],
        ),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --first-last-layers-bf16", ["outer-layers"]),
        (
            "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --use-distributed-optimizer --fp8-param-gather "
            "--reuse-grad-buf-for-mxfp8-param-ag",
            ["shared-buffer"],
        ),
        ("--bf16 --loss-scale 128", ["idle-loss-scale"]),
    ],
)
def test_what_megatron_accepts_and_is_dangerous_is_found(text: str, codes: list[str]) -> None:
    assert [finding.code for finding in reading(text, "megatron", "flags").findings] == codes


BAD = [
    ("--fp16\n--bf16", "given:2: bf16: got --bf16 and --fp16; keep one of them"),
    (
        "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer\n--main-grads-dtype bf16\n"
        "--accumulate-allreduce-grads-in-fp32",
        "given:2: main_grads_dtype: got bf16 with --accumulate-allreduce-grads-in-fp32",
    ),
    ("--bf16 --exp-avg-dtype bf16", "given:1: exp_avg_dtype: got bf16 without --use-precision-aware-optimizer"),
    ("--bf16 --use-precision-aware-optimizer", "given:1: use_precision_aware_optimizer: needs --use-distributed-opt"),
    (
        "--use-distributed-optimizer --use-precision-aware-optimizer --optimizer sgd",
        "given:1: use_precision_aware_optimizer: works with --optimizer adam only",
    ),
    ("--bf16 --fp8-format e4m3 --fp8-param-gather", "given:1: fp8_param_gather: needs --use-distributed-optimizer"),
    ("--bf16 --fp8-format e4m3 --fp4-format e2m1", "given:1: fp4_format: got --fp4-format and --fp8-format"),
    ("--bf16 --fp4-format e2m1", "given:1: fp4_format: no plan stands for 4-bit operands"),
    ("--bf16 --fp8-format e4m3 --fp8-recipe custom", 'given:1: fp8_recipe: no plan stands for "custom"'),
    (
        "--bf16 --fp8-format e4m3 --first-last-layers-bf16",
        "given:1: first_last_layers_bf16: delayed scaling cannot leave layers out",
    ),
    ("--bf16 --fp16-lm-cross-entropy", "given:1: fp16_lm_cross_entropy: needs --fp16"),
    ("--fp32-residual-connection", "given:1: fp32_residual_connection: needs --fp16 or --bf16"),
    ("--fp16 --use-torch-fsdp2", "given:1: use_torch_fsdp2: does not work with --fp16"),
    (
        "--bf16 --use-torch-fsdp2 --use-distributed-optimizer",
        "given:1: use_torch_fsdp2: does not work with --use-distributed-optimizer",
    ),
    (
        "--fp16 --initial-loss-scale 2\n--min-loss-scale 4",
        "given:2: min_loss_scale: is above --initial-loss-scale",
    ),
    ("--fp16\n--hysteresis 0", "given:2: hysteresis: got 0, expected a whole number from 1"),
    ("--fp16\n--hysteresis two", 'given:2: hysteresis: got "two", expected a whole number'),
    ("--fp16 --min-loss-scale 0", "given:1: min_loss_scale: got 0.0, expected a number above 0"),
    ("--fp16 --loss-scale-window", "given:1: loss_scale_window: got true, expected a number"),
    ("--bf16 true", 'given:1: bf16: got "true", expected nothing: this flag is a switch'),
    ("--fp8-format e5m2", 'given:1: fp8_format: got "e5m2", expected "e4m3" or "hybrid"'),
    (
        "--fp16\n--initial-loss-scael 4",
        "given:2: initial_loss_scael: Megatron-LM knows no such flag; did you mean --initial-loss-scale?",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_megatron_refuses_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        reading(text, "megatron", "flags")
    assert str(error.value).startswith(message)


def test_flags_of_megatron_and_of_the_script_beside_them_are_passed_over() -> None:
    text = "--bf16 --fp4-recipe nvfp4 --no-fp8-wgrad --micro-batch-size 4 --my-own-flag 3"
    assert reading(text, "megatron", "flags").plan.recipe == "bf16-master"


def test_a_flag_of_a_newer_version_is_told() -> None:
    given_flags = settings_of_text("--bf16 --fp4-format e2m1", "flags", "given")
    with pytest.raises(BadFileError, match=r"Megatron-LM 0\.14 does not have this key; it is there since 0\.15"):
        read_settings(given_flags, get_system("megatron"), Version.of("0.14"))


@pytest.mark.parametrize(
    ("text", "form", "sure"),
    [("--bf16 --micro-batch-size 1", "flags", 0.9), ("--bf16", "flags", 0.2), ("bf16: true", "yaml", 0.0)],
)
def test_its_flags_are_told_from_others(text: str, form: str, sure: float) -> None:
    assert get_system("megatron").recognises(settings_of_text(text, form)) == sure
