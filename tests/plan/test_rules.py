# SPDX-License-Identifier: Apache-2.0
"""Every combination that is refused: found where it stands, explained, and cured by what the message says."""

from __future__ import annotations

from typing import Any

import pytest

from floatwise.errors import PlanError
from floatwise.plan import LossScale, Plan, Policy, Reductions, Weights, recipe
from floatwise.plan.problems import Rule
from floatwise.plan.rules import PLAN_RULES
from floatwise.plan.scale_rules import SCALE_RULES

_F32 = {"compute_dtype": "float32"}
_BF16_WEIGHTS = {"param_dtype": "bfloat16", "compute_dtype": "bfloat16"}
_FP16_WEIGHTS = {"param_dtype": "float16", "compute_dtype": "float16"}
_FP8 = {"compute_dtype": "float8_e4m3fn"}

# Rule, recipe, what is changed in it, where the fault is, what the message says, and the cure it offers.
_CASES: list[tuple[str, str, dict[str, Any], str, str, dict[str, Any]]] = [
    (
        "recipe_contradicted",
        "bf16-mixed",
        {"policy": {"compute_dtype": "float16"}, "loss_scale": {}},
        "recipe",
        'write recipe = "fp16-mixed"',
        {"recipe": "fp16-mixed"},
    ),
    (
        "recipe_contradicted",
        "fp16-mixed",
        {"policy": _FP16_WEIGHTS, "weights": {"master": "float32"}},
        "recipe",
        'write recipe = "fp16-master"',
        {"recipe": "fp16-master"},
    ),
    ("recipe_contradicted", "fp32", {"float32_matmul": "tf32"}, "recipe", '"tf32"', {"recipe": "tf32"}),
    ("recipe_contradicted", "tf32", {"float32_matmul": "ieee"}, "recipe", '"fp32"', {"recipe": "fp32"}),
    (
        "recipe_contradicted",
        "fp8-rowwise",
        {"scaling": "tensorwise"},
        "recipe",
        'write recipe = "fp8-tensorwise", or write scaling = "rowwise"',
        {"scaling": "rowwise"},
    ),
    (
        "recipe_contradicted",
        "fp32",
        {"policy": {"param_dtype": "bfloat16", "compute_dtype": "float32"}, "weights": {"master": "split"}},
        "recipe",
        'do:  write param_dtype = "float32"',
        {"policy": _F32, "weights": {}},
    ),
    (
        "float16_needs_loss_scale",
        "fp16-mixed",
        {"loss_scale": None},
        "policy.compute_dtype",
        '\n        [loss_scale]\n        mode = "dynamic"\n        initial_scale = 65536.0',
        {"loss_scale": {"mode": "dynamic", "initial_scale": 65536.0}},
    ),
    (
        "float16_needs_loss_scale",
        "fp32",
        {"modules": [{"module": "a", "policy": {"compute_dtype": "float16"}}]},
        "modules[0].policy.compute_dtype",
        "become zero in float16",
        {"loss_scale": {"mode": "static"}},
    ),
    (
        "float16_needs_loss_scale",
        "bf16-mixed",
        {"reductions": {"reduce_dtype": "float16"}},
        "reductions.reduce_dtype",
        "without a loss scale",
        {"loss_scale": {}},
    ),
    (
        "loss_scale_without_float16",
        "bf16-mixed",
        {"loss_scale": {}},
        "loss_scale",
        "delete the table [loss_scale]",
        {"loss_scale": None},
    ),
    ("loss_scale_without_float16", "fp32", {"loss_scale": {}}, "loss_scale", "delete", {"loss_scale": None}),
    ("loss_scale_without_float16", "fp8-rowwise", {"loss_scale": {}}, "loss_scale", "", {"loss_scale": None}),
    (
        "stalling_weights",
        "bf16-master",
        {"weights": {"master": "none"}},
        "policy.param_dtype",
        'write master = "split"',
        {"weights": {"master": "split"}},
    ),
    (
        "stalling_weights",
        "fp16-master",
        {"weights": {"master": "none"}},
        "policy.param_dtype",
        'write master = "float32"',
        {"weights": {"master": "float32"}},
    ),
    (
        "stalling_weights",
        "bf16-mixed",
        {"modules": [{"module": "a", "policy": _BF16_WEIGHTS}]},
        "modules[0].policy.param_dtype",
        "updates under half an ulp of a weight are lost",
        {"weights": {"master": "kahan"}},
    ),
    (
        "master_of_float32",
        "bf16-mixed",
        {"weights": {"master": "float32"}},
        "weights.master",
        'write master = "none"',
        {"weights": {"master": "none"}},
    ),
    (
        "split_float16",
        "fp16-master",
        {"weights": {"master": "split"}},
        "weights.master",
        'write master = "float32"',
        {"weights": {"master": "float32"}},
    ),
    (
        "float8_needs_scaling",
        "bf16-mixed",
        {"recipe": "fp8-tensorwise", "policy": _FP8},
        "policy.compute_dtype",
        '\n        scaling = "tensorwise"',
        {"scaling": "tensorwise"},
    ),
    (
        "scaling_without_float8",
        "bf16-mixed",
        {"scaling": "rowwise"},
        "scaling",
        "delete this line",
        {"scaling": None},
    ),
    (
        "float8_module",
        "bf16-mixed",
        {"modules": [{"module": "a", "policy": _FP8}]},
        "modules[0].policy.compute_dtype",
        "list here the modules that stay",
        {
            "recipe": "fp8-rowwise",
            "scaling": "rowwise",
            "policy": _FP8,
            "modules": [{"module": "b", "policy": {"compute_dtype": "bfloat16"}}],
        },
    ),
    (
        "two_sixteen_bit_formats",
        "fp16-mixed",
        {"modules": [{"module": "a", "policy": {"compute_dtype": "bfloat16"}}]},
        "modules[0].policy.compute_dtype",
        'write "float16" or "float32" here',
        {"modules": [{"module": "a", "policy": _F32}]},
    ),
    (
        "two_sixteen_bit_formats",
        "fp8-tensorwise",
        {"modules": [{"module": "a", "policy": {"compute_dtype": "float16"}}], "loss_scale": {}},
        "modules[0].policy.compute_dtype",
        'write "bfloat16" or "float32" here',
        {"modules": [{"module": "a", "policy": {"compute_dtype": "bfloat16"}}], "loss_scale": None},
    ),
    (
        "two_sixteen_bit_formats",
        "bf16-mixed",
        {"reductions": {"buffer_dtype": "float16"}},
        "reductions.buffer_dtype",
        'write "bfloat16" or "float32" here',
        {"reductions": {"buffer_dtype": "bfloat16"}},
    ),
    (
        "same_modules_twice",
        "bf16-mixed",
        {"modules": [{"module": "", "policy": _F32}, {"module": "(root)", "policy": {}}]},
        "modules[1].module",
        "delete this entry or modules[0]",
        {"modules": [{"module": "", "policy": _F32}]},
    ),
    (
        "floor_above_start",
        "fp16-mixed",
        {"loss_scale": {"floor": 2.0**17}},
        "loss_scale.floor",
        "write floor = 65536.0 or less",
        {"loss_scale": {"floor": 65536.0}},
    ),
    (
        "ceiling_below_start",
        "fp16-mixed",
        {"loss_scale": {"ceiling": 2.0**15}},
        "loss_scale.ceiling",
        "write ceiling = 65536.0 or more",
        {"loss_scale": {"ceiling": 65536.0}},
    ),
    (
        "scale_outside_float32",
        "fp16-mixed",
        {"loss_scale": {"floor": 1e-45}},
        "loss_scale.floor",
        "from 2**-126 to 2**127",
        {"loss_scale": {"floor": 2.0**-126}},
    ),
    (
        "window_backwards",
        "fp16-mixed",
        {"loss_scale": {"window_log2": [5, 4]}},
        "loss_scale.window_log2",
        "[4, 5]",
        {"loss_scale": {"window_log2": [4, 5]}},
    ),
]

_IDS = [f"{code}-{name}-{i}" for i, (code, name, *_) in enumerate(_CASES)]
_RULES: tuple[Rule, ...] = (*PLAN_RULES, *SCALE_RULES)


@pytest.mark.parametrize(("code", "name", "changes", "where", "says", "cure"), _CASES, ids=_IDS)
def test_combination_is_refused_and_its_cure_accepted(
    code: str, name: str, changes: dict[str, Any], where: str, says: str, cure: dict[str, Any]
) -> None:
    rule = next(rule for rule in _RULES if rule.code == code)
    with pytest.raises(PlanError) as caught:
        recipe(name, **changes)
    message = str(caught.value)
    assert any(part.startswith(f"{where}: got ") for part in message.splitlines())
    assert f"\n    why: {rule.why}\n    do:  " in message
    assert says in message
    assert message.count("why:") == 1, message
    recipe(name, **{**changes, **cure})


def test_every_rule_has_a_case_a_reason_and_a_source() -> None:
    assert {rule.code for rule in _RULES} == {code for code, *_ in _CASES}
    assert all(rule.why and rule.source for rule in _RULES)


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.code)
def test_a_rule_reads_keys_that_exist(rule: Rule) -> None:
    table = Plan if rule in PLAN_RULES else LossScale
    assert rule.reads <= set(table.model_fields)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fp16-mixed", {"loss_scale": LossScale(mode="static", initial_scale=8.0)}),
        ("fp16-mixed", {"reductions": Reductions(reduce_dtype="bfloat16")}),
        ("fp16-mixed", {"reductions": Reductions(reduce_dtype="float16", buffer_dtype="float16")}),
        ("bf16-mixed", {"float32_matmul": "tf32"}),
        ("fp8-tensorwise", {"float32_matmul": "tf32"}),
        ("fp8-tensorwise", {"policy": Policy(compute_dtype="float8_e4m3fnuz")}),
        (
            "fp8-rowwise",
            {
                "policy": Policy(param_dtype="bfloat16", compute_dtype="float8_e4m3fn"),
                "weights": Weights(master="kahan"),
            },
        ),
        ("bf16-master", {"weights": Weights(master="stochastic")}),
        ("bf16-master", {"modules": [{"module": "norm", "policy": _F32}]}),
        ("fp16-master", {"weights": Weights(master="kahan")}),
        ("fp32", {"modules": [{"module": "trunk.**", "policy": {}}]}),
        (
            "fp32",
            {"modules": [{"module": "t", "policy": {"compute_dtype": "float16"}}], "loss_scale": LossScale()},
        ),
    ],
)
def test_sound_combination_is_accepted(name: str, changes: dict[str, Any]) -> None:
    assert recipe(name, **changes).recipe == name


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        # What could not be read might have been right: no conclusions are drawn from it.
        ({"policy": {"compute_dtype": "half"}, "loss_scale": {}}, ["policy.compute_dtype"]),
        ({"policy": {"compute_dtyp": "float16"}, "loss_scale": {}}, ["policy.compute_dtyp"]),
        ({"loss_scale": None, "los_scale": {}}, ["los_scale"]),
        ({"loss_scale": {"initial_scale": "big", "floor": 2.0**30}}, ["loss_scale.initial_scale"]),
        # Faults elsewhere do not hide it.
        ({"loss_scale": None, "target": 3}, ["target", "policy.compute_dtype"]),
        ({"loss_scale": {"floor": 2.0**30, "mood": 1}}, ["loss_scale.mood"]),
        (
            {"loss_scale": {"floor": 2.0**30, "growth_factor": 0.5}},
            ["loss_scale.growth_factor", "loss_scale.floor"],
        ),
    ],
)
def test_rules_judge_only_what_could_be_read(changes: dict[str, Any], places: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        recipe("fp16-mixed", **changes)
    found = [line.split(": ")[0] for line in str(caught.value).splitlines() if not line.startswith(" ")]
    assert found == places
