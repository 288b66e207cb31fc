# SPDX-License-Identifier: Apache-2.0
"""What is written for DeepSpeed, by stage and version; what is refused, lost and remarked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporters.plans import plans

from floatwise.errors import BadInputError, PlanError
from floatwise.exporters import export_plan, get_system
from floatwise.plan import LossScale, ModulePolicy, Plan, Policy, Reductions, Weights, diff_plans, recipe

DEEPSPEED = get_system("deepspeed")
NEWEST = "0.19.8"


def written(plan: Plan, stage: int = 1, version: str = NEWEST) -> dict[str, Any]:
    """Returns what is exported without the placeholder for the batch size."""
    values: dict[str, Any] = json.loads(export_plan(plan, DEEPSPEED, version=version, options={"stage": stage}).text)
    assert values.pop("train_micro_batch_size_per_gpu") == 1
    return values


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}


AUTOCAST: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
SUMS = {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
NARROW = Reductions(reduce_dtype="bfloat16", accumulate_dtype="bfloat16", buffer_dtype="bfloat16")


def test_the_text_of_fp16_master_is_this() -> None:
    assert export_plan(recipe("fp16-master"), DEEPSPEED, version=NEWEST).text == (
        """\
{
  "train_micro_batch_size_per_gpu": 1,
  "fp16": {
    "enabled": true,
    "auto_cast": true,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 2000,
    "hysteresis": 1,
    "min_loss_scale": 1
  },
  "communication_data_type": "fp32",
  "data_types": {
    "grad_accum_dtype": "fp32"
  },
  "zero_optimization": {
    "stage": 1
  }
}
"""
    )


@pytest.mark.parametrize(
    ("plan", "stage", "version", "values"),
    [
        (recipe("fp32"), 0, NEWEST, {}),
        (recipe("tf32"), 3, NEWEST, {}),
        (
            recipe("fp32", reductions=NARROW),
            1,
            NEWEST,
            {"communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "bf16"}},
        ),
        (recipe("fp32", reductions=NARROW), 2, NEWEST, {"communication_data_type": "bf16"}),
        (recipe("bf16-mixed"), 0, NEWEST, AUTOCAST),
        (recipe("bf16-mixed", reductions=NARROW), 0, NEWEST, {**AUTOCAST, "communication_data_type": "bf16"}),
        (
            recipe("bf16-mixed"),
            2,
            NEWEST,
            {"torch_autocast": {**AUTOCAST["torch_autocast"], "lower_precision_safe_modules": []}},
        ),
        (recipe("bf16-mixed", reductions=NARROW), 3, NEWEST, {**AUTOCAST, "data_types": {"grad_accum_dtype": "bf16"}}),
        (recipe("fp16-mixed"), 0, NEWEST, {"torch_autocast": {"enabled": True, "dtype": "float16"}}),
        (recipe("bf16-master"), 0, NEWEST, {"bf16": {"enabled": True}, "communication_data_type": "fp32"}),
        (recipe("bf16-master"), 3, NEWEST, {"bf16": {"enabled": True}, **SUMS}),
        (
            recipe("bf16-master", reductions=NARROW),
            2,
            NEWEST,
            {"bf16": {"enabled": True}, "data_types": {"buffer_dtype": "bf16"}},
        ),
        # Before 0.19.2 buffers follow the weights, before 0.19.3 overflow is not checked unless asked for, and up to
        # 0.18.4 bfloat16 weights without ZeRO could, and once had to, be summed in float32.
        (recipe("bf16-master"), 1, "0.19.1", {"bf16": {"enabled": True, "check_grad_overflow": True}, **SUMS}),
        (recipe("bf16-master", reductions=NARROW), 1, "0.17.0", {"bf16": {"enabled": True}}),
        (recipe("bf16-master"), 0, "0.17.0", {"bf16": {"enabled": True}, **SUMS}),
        (
            recipe("bf16-master"),
            0,
            "0.18.6",
            {"bf16": {"enabled": True, "check_grad_overflow": True}, "communication_data_type": "fp32"},
        ),
    ],
)
def test_plans_become_these_keys(plan: Plan, stage: int, version: str, values: dict[str, Any]) -> None:
    assert written(plan, stage, version) == {**values, **zero(stage)}


@pytest.mark.parametrize(
    ("scale", "keys"),
    [
        (
            {"initial_scale": 2.0**20, "growth_interval": 500, "hysteresis": 3, "floor": 8.0},
            {
                "loss_scale": 0,
                "initial_scale_power": 20,
                "loss_scale_window": 500,
                "hysteresis": 3,
                "min_loss_scale": 8,
                "consecutive_hysteresis": True,
            },
        ),
        # Not a power of two: the next smaller. No whole number: the next smaller, and 1 at least.
        (
            {"initial_scale": 1000.0, "floor": 2.5},
            {
                "loss_scale": 0,
                "initial_scale_power": 9,
                "loss_scale_window": 2000,
                "hysteresis": 1,
                "min_loss_scale": 2,
            },
        ),
        (
            {"initial_scale": 3.0, "floor": 3.0},
            {
                "loss_scale": 0,
                "initial_scale_power": 1,
                "loss_scale_window": 2000,
                "hysteresis": 1,
                "min_loss_scale": 2,
            },
        ),
        (
            {"initial_scale": 0.25, "floor": 0.25},
            {
                "loss_scale": 0,
                "initial_scale_power": 0,
                "loss_scale_window": 2000,
                "hysteresis": 1,
                "min_loss_scale": 1,
            },
        ),
        (
            {"initial_scale": 2.0**40, "ceiling": 2.0**40},
            {
                "loss_scale": 0,
                "initial_scale_power": 32,
                "loss_scale_window": 2000,
                "hysteresis": 1,
                "min_loss_scale": 1,
            },
        ),
        ({"mode": "static", "initial_scale": 1000.0}, {"loss_scale": 1000.0}),
        ({"mode": "static", "initial_scale": 2.0**40}, {"loss_scale": 2.0**32}),
    ],
)
def test_loss_scales_become_these_keys(scale: dict[str, Any], keys: dict[str, Any]) -> None:
    values = written(recipe("fp16-master", loss_scale=LossScale(**scale)))
    assert values["fp16"] == {"enabled": True, "auto_cast": True, **keys}


@pytest.mark.parametrize(
    ("plan", "stage", "version", "says"),
    [
        (recipe("fp8-rowwise"), 1, NEWEST, "no float8 training.*torchao or TransformerEngine"),
        (recipe("mxfp8"), 0, "0.16.0", "no float8 training"),
        (recipe("fp16-master"), 0, NEWEST, "loss is not scaled.*Choose stage 1.*DeepSpeed#8393"),
        (recipe("fp16-master"), 0, "0.18.3", "loss is not scaled"),
        (recipe("fp16-mixed"), 1, NEWEST, "never lowers the loss scale.*gradient_clipping.*Stage 0 trains it"),
        (recipe("fp16-mixed"), 3, "0.17.2", "never lowers the loss scale"),
        (recipe("fp16-mixed"), 0, "0.17.6", "does not scale the loss before 0.18.0"),
        (recipe("bf16-mixed"), 1, "0.17.1", "torch_autocast, which came in 0.17.2"),
        (recipe("bf16-master"), 0, "0.18.5", "divided by 65536.*7839 in 0.18.6"),
        (
            recipe("bf16-mixed", reductions=Reductions(reduce_dtype="float16"), loss_scale=LossScale()),
            1,
            NEWEST,
            "scales the loss only where it computes in float16",
        ),
    ],
)
def test_plans_that_would_be_trained_wrongly_are_refused(plan: Plan, stage: int, version: str, says: str) -> None:
    with pytest.raises(PlanError, match=f"(?s)DeepSpeed {version} would not train this plan as it says.*{says}"):
        written(plan, stage, version)


@pytest.mark.parametrize(
    ("plan", "stage", "version"),
    [
        (recipe("fp16-master"), 0, "0.18.2"),
        (recipe("fp16-mixed"), 0, "0.18.0"),
        (recipe("bf16-mixed"), 1, "0.17.2"),
        (recipe("bf16-master"), 0, "0.18.4"),
        (recipe("bf16-master"), 0, "0.18.6"),
    ],
)
def test_other_versions_are_not_refused(plan: Plan, stage: int, version: str) -> None:
    assert written(plan, stage, version)


def test_versions_before_the_tables_and_unknown_stages_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"got DeepSpeed 0\.15\.4; its keys are known from 0\.16\.0 on"):
        written(recipe("fp32"), version="0.15.4")
    with pytest.raises(BadInputError, match=r"got stage = 4, expected 0 or 1 or 2 or 3"):
        written(recipe("fp32"), stage=4)


RICH = recipe(
    "bf16-master",
    weights=Weights(master="kahan"),
    float32_matmul="tf32",
    reductions=NARROW,
    modules=(ModulePolicy(module="head", policy=Policy(param_dtype="bfloat16", compute_dtype="float32")),),
)


@pytest.mark.parametrize(
    ("plan", "stage", "lost"),
    [
        (RICH, 1, {"weights.master", "policy.output_dtype", "float32_matmul", 'modules["head"'}),
        (recipe("tf32"), 1, {"recipe", "float32_matmul"}),
        (recipe("bf16-master"), 0, {"weights.master", "policy.output_dtype", "reductions.accumulate_dtype"}),
        (
            recipe("bf16-mixed", reductions=NARROW),
            2,
            {"policy.output_dtype", "reductions.accumulate_dtype", "reductions.buffer_dtype"},
        ),
        (
            recipe(
                "fp16-mixed",
                loss_scale=LossScale(initial_scale=1024.0, growth_factor=4.0, hysteresis=2, growth_interval=10),
            ),
            0,
            {
                "policy.output_dtype",
                "loss_scale.initial_scale",
                "loss_scale.growth_factor",
                "loss_scale.growth_interval",
                "loss_scale.growth",
                "loss_scale.hysteresis",
                "loss_scale.floor",
                "loss_scale.ceiling",
            },
        ),
        (
            recipe("fp16-mixed", loss_scale=LossScale(mode="static", growth="fixed")),
            0,
            {"policy.output_dtype", "loss_scale.mode", "loss_scale.floor", "loss_scale.ceiling"},
        ),
        (
            recipe("fp16-master", loss_scale=LossScale(initial_scale=1000.0, growth="fixed", floor=0.5)),
            2,
            {"policy.output_dtype", "loss_scale.initial_scale", "loss_scale.floor", "loss_scale.ceiling"},
        ),
    ],
)
def test_what_is_lost_is_said(plan: Plan, stage: int, lost: set[str]) -> None:
    notes = export_plan(plan, DEEPSPEED, version=NEWEST, options={"stage": stage}).notes
    fields = {field.partition("]")[0] for note in notes for field in note.fields}
    assert fields == lost
    assert all(note.what.en and note.what.zh for note in notes)


def test_remarks_say_to_merge_and_what_the_host_must_know() -> None:
    def remarks(name: str, stage: int) -> str:
        notes = export_plan(recipe(name), DEEPSPEED, version=NEWEST, options={"stage": stage}).notes
        return " ".join(note.what.en for note in notes if not note.fields)

    assert "Merge these keys into your own file" in remarks("fp32", 0)
    assert "All operators compute in 16 bits" in remarks("bf16-master", 1)
    assert "min_loss_scale ends the run" in remarks("fp16-master", 1)
    assert "skipped_steps stays 0" in remarks("fp16-mixed", 0)
    assert "lower_precision_safe_modules is empty" in remarks("bf16-mixed", 1)
    assert "lower_precision_safe_modules" not in remarks("bf16-mixed", 0)


@settings(max_examples=150, deadline=None)
@given(
    plans(),
    st.sampled_from((0, 1, 2, 3)),
    st.sampled_from(("0.16.0", "0.17.1", "0.17.6", "0.18.2", "0.18.4", "0.18.9", "0.19.2", "0.20.0")),
)
def test_what_is_lost_is_what_was_said_for_every_version(plan: Plan, stage: int, version: str) -> None:
    try:
        one = export_plan(plan, DEEPSPEED, version=version, options={"stage": stage})
    except PlanError:
        return
    said = [field for note in one.notes for field in note.fields]
    assert sorted(said) == sorted(change.path for change in diff_plans(plan, one.reading.plan))
    again = export_plan(one.reading.plan, DEEPSPEED, version=version, options={"stage": stage})
    assert again.text == one.text
    assert not any(note.fields for note in again.notes)
