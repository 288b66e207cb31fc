# SPDX-License-Identifier: Apache-2.0
"""The plan's tables: defaults, immutability, what they refuse and in which words."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from floatwise.errors import PlanError
from floatwise.formats import get_format
from floatwise.plan import RECIPES, LossScale, ModulePolicy, Plan, Policy, Reductions, Weights, recipe
from floatwise.plan.dtypes import COMPUTE_FORMATS, STORE_FORMATS


def test_defaults_are_those_of_their_sources() -> None:
    assert Policy().model_dump() == {
        "param_dtype": "float32",
        "compute_dtype": "bfloat16",
        "output_dtype": "float32",
    }
    assert LossScale().model_dump() == {
        "mode": "dynamic",
        "initial_scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "growth": "headroom",
        "headroom_bits": 4,
        "hysteresis": 1,
        "floor": 1.0,
        "ceiling": 2.0**24,
        "window_log2": None,
    }
    assert Weights().master == "none"
    assert set(Reductions().model_dump().values()) == {"float32"}


@pytest.mark.parametrize("name", sorted({*STORE_FORMATS, *COMPUTE_FORMATS}))
def test_formats_are_named_as_the_formats_table_names_them(name: str) -> None:
    assert get_format(name).name == name


def test_a_plan_is_frozen_hashable_and_pickles() -> None:
    plan = recipe("fp16-mixed")
    with pytest.raises(ValidationError, match="frozen"):
        plan.recipe = "fp32"
    assert hash(plan) == hash(recipe("fp16-mixed"))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert Plan.model_validate(plan.model_dump()) == plan
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_errors_pickle() -> None:
    with pytest.raises(PlanError) as caught:
        Policy(compute_dtype="half", param_dtype="quarter")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)


def test_the_empty_glob_is_the_root() -> None:
    assert ModulePolicy(module="", policy=Policy()).module == "(root)"


def test_islands_are_the_float32_modules_of_a_lower_plan() -> None:
    high = ModulePolicy(module="head", policy=Policy(compute_dtype="float32"))
    low = ModulePolicy(module="trunk", policy=Policy(compute_dtype="bfloat16"))
    assert recipe("bf16-mixed", modules=(low, high)).islands == (high,)
    assert recipe("fp32", modules=(low, high)).islands == ()


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (recipe("fp32"), True),
        (recipe("tf32"), False),
        (recipe("bf16-mixed"), False),
        (recipe("fp32", reductions=Reductions(reduce_dtype="bfloat16")), False),
        (recipe("fp32", reductions=Reductions(buffer_dtype="bfloat16")), False),
        (recipe("fp32", policy=Policy(compute_dtype="float32", output_dtype="bfloat16")), False),
        (recipe("fp32", modules=(ModulePolicy(module="a", policy=Policy()),)), False),
    ],
)
def test_is_float32_says_that_nothing_is_lower(plan: Plan, expected: bool) -> None:
    assert plan.is_float32 is expected


def test_compute_dtype_is_the_default_one() -> None:
    assert recipe("fp16-mixed").compute_dtype == "float16"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"initial_scale": "big"},
            "initial_scale: got 'big', expected a number, such as initial_scale = 65536.0",
        ),
        ({"initial_scale": float("nan")}, "initial_scale: got nan, expected a finite number"),
        ({"initial_scale": float("inf")}, "initial_scale: got inf, expected a finite number"),
        ({"initial_scale": -1.0}, "initial_scale: got -1.0, expected a number greater than 0"),
        ({"initial_scale": 0}, "initial_scale: got 0, expected a number greater than 0"),
        ({"initial_scale": True}, "initial_scale: got True, expected a number"),
        ({"initial_scale": "65536.0"}, "initial_scale: got '65536.0', expected a number"),
        ({"initial_scale": 1e-40}, "initial_scale: got 1e-40, which is no normal float32"),
        ({"mode": "static", "initial_scale": 1e39}, "initial_scale: got 1e+39, which is no normal float32"),
        ({"growth_factor": 1.0}, "growth_factor: got 1.0, expected a number greater than 1"),
        ({"backoff_factor": 0.0}, "backoff_factor: got 0.0, expected a number greater than 0"),
        ({"backoff_factor": 1.0}, "backoff_factor: got 1.0, expected a number less than 1"),
        ({"growth_interval": 0}, "growth_interval: got 0, expected a number not less than 1"),
        ({"growth_interval": 2.0}, "growth_interval: got 2.0, expected a whole number"),
        ({"growth_interval": 2**31}, "growth_interval: got 2147483648, expected a number less than"),
        ({"growth": "blind"}, "growth: got 'blind', expected 'headroom' or 'fixed'"),
        ({"headroom_bits": -1}, "headroom_bits: got -1, expected a number not less than 0"),
        ({"headroom_bits": 41}, "headroom_bits: got 41, expected a number not greater than 40"),
        ({"headroom_bits": 4.5}, "headroom_bits: got 4.5, expected a whole number"),
        ({"hysteresis": 0}, "hysteresis: got 0, expected a number not less than 1"),
        ({"hysteresis": 2**24}, "hysteresis: got 16777216, expected a number less than"),
        ({"floor": 2.0**17}, "floor: got 131072.0, above initial_scale = 65536.0"),
        ({"ceiling": 2.0}, "ceiling: got 2.0, below initial_scale = 65536.0"),
        ({"window_log2": (9, 3)}, "write the smaller first: [3, 9]"),
        ({"window_log2": (3,)}, "window_log2[1]: missing; it is the smallest and largest power"),
        ({"window_log2": (1, 2, 3)}, "window_log2: got (1, 2, 3), expected a list of 2"),
        ({"window_log2": (3, 200)}, "window_log2[1]: got 200, expected a number not greater than 127"),
        ({"window_log2": "3-9"}, "window_log2: got '3-9', expected a list"),
        ({"mode": "auto"}, "mode: got 'auto', expected 'dynamic' or 'static'"),
        ({"init_scale": 2.0}, "init_scale: unknown key; did you mean 'initial_scale'?"),
    ],
)
def test_loss_scale_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        LossScale(**values)
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_static_scale_needs_no_floor_or_ceiling() -> None:
    assert LossScale(mode="static", initial_scale=2.0**30).initial_scale == 2.0**30
    assert LossScale(mode="static", initial_scale=0.5).initial_scale == 0.5


@pytest.mark.parametrize(
    ("key", "got", "message"),
    [
        ("compute_dtype", "fp16", 'write "float16"'),
        ("compute_dtype", "half", 'write "float16"'),
        ("compute_dtype", "bflaot16", "did you mean bfloat16 or"),
        ("compute_dtype", "int4!", "there is no such format"),
        ("compute_dtype", "tf32", 'float32_matmul = "tf32"'),
        ("compute_dtype", "float8_e5m2", 'write "float8_e4m3fn"'),
        ("compute_dtype", "float8_e5m2fnuz", 'write "float8_e4m3fnuz"'),
        ("compute_dtype", "float64", 'write "float32"'),
        ("compute_dtype", "mxfp8", "no runtime trains in that format"),
        ("compute_dtype", 16, "got 16, expected text in quotes, such as compute_dtype"),
        ("param_dtype", "float8_e4m3fn", 'write "bfloat16"'),
        ("output_dtype", "float8_e4m3fn", 'write "bfloat16"'),
    ],
)
def test_policy_refuses(key: str, got: object, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Policy(**{key: got})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{key}: got {got!r}, expected ")
    assert message in str(caught.value)


def test_all_faults_come_at_once_with_their_places() -> None:
    with pytest.raises(PlanError) as caught:
        Plan(
            recipe="fp17-mixed",
            policy={"compute_dtype": "half", "extra": 1},  # type: ignore[arg-type]
            modules=[{"module": "a..b", "policy": {"param_dtype": 1}}],  # type: ignore[arg-type]
            scaling="blockwise",  # type: ignore[arg-type]
            script="\ud800",
        )
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()]
    assert set(places) == {
        "recipe",
        "policy.compute_dtype",
        "policy.extra",
        "modules[0].module",
        "modules[0].policy.param_dtype",
        "scaling",
        "script",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": 3}, "policy: got 3, expected a table that begins with the line [policy]"),
        ({"modules": {"module": "a"}}, "begin each with the line [[modules]]"),
        ({"modules": ["a"]}, "modules[0]: got 'a', expected a table that begins with the line [[modules]]"),
        ({"schema_version": 2}, "schema_version: got 2, expected 1"),
        ({"schema_version": True}, "schema_version: got True, expected a whole number"),
        ({"recipe": "fp16_mixed"}, "did you mean 'fp16-mixed'"),
        ({"script": "\udcff.py"}, "lone surrogates"),
    ],
)
def test_plan_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan(**{"recipe": "fp32", "policy": Policy(compute_dtype="float32"), **values})
    assert message in str(caught.value)


def test_missing_tables_are_named_with_what_they_hold() -> None:
    with pytest.raises(PlanError) as caught:
        Plan()  # type: ignore[call-arg]
    assert str(caught.value).splitlines() == [
        f"recipe: missing; it is the recipe the plan began as: {', '.join(RECIPES)}",
        "policy: missing; it is the table of the default formats: param_dtype, compute_dtype, output_dtype",
    ]
