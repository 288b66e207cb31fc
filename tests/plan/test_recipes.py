# SPDX-License-Identifier: Apache-2.0
"""The recipes, what they stand for, and overriding them."""

from __future__ import annotations

import pytest

from floatwise.errors import PlanError, UnknownNameError
from floatwise.plan import RECIPES, LossScale, recipe
from floatwise.plan.recipe_table import RECIPE_TABLE

_EXPECTED = {
    # param, compute, master, loss scale, float32 products, scaling
    "fp32": ("float32", "float32", "none", False, "ieee", None),
    "tf32": ("float32", "float32", "none", False, "tf32", None),
    "fp16-mixed": ("float32", "float16", "none", True, "ieee", None),
    "bf16-mixed": ("float32", "bfloat16", "none", False, "ieee", None),
    "bf16-master": ("bfloat16", "bfloat16", "split", False, "ieee", None),
    "fp16-master": ("float16", "float16", "float32", True, "ieee", None),
    "fp8-tensorwise": ("float32", "float8_e4m3fn", "none", False, "ieee", "tensorwise"),
    "fp8-rowwise": ("float32", "float8_e4m3fn", "none", False, "ieee", "rowwise"),
    "fp8-rowwise-gw-hp": ("float32", "float8_e4m3fn", "none", False, "ieee", "rowwise_with_gw_hp"),
    "mxfp8": ("float32", "float8_e4m3fn", "none", False, "ieee", "mx"),
}


@pytest.mark.parametrize("name", _EXPECTED)
def test_recipe(name: str) -> None:
    plan = recipe(name)
    got = (
        plan.policy.param_dtype,
        plan.policy.compute_dtype,
        plan.weights.master,
        plan.loss_scale is not None,
        plan.float32_matmul,
        plan.scaling,
    )
    assert got == _EXPECTED[name]
    assert plan.recipe == name
    assert plan.policy.output_dtype == "float32"
    assert not plan.modules


def test_there_are_no_others_and_each_is_described_in_both_languages() -> None:
    assert set(RECIPES) == set(_EXPECTED)
    for name, text in RECIPES.items():
        assert text.en.endswith(".")
        assert text.zh.endswith("。")
        assert RECIPE_TABLE[name].source


def test_overrides_replace_the_recipes_values() -> None:
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=8.0), target="t4")
    assert plan.loss_scale == LossScale(initial_scale=8.0)
    assert plan.target == "t4"


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bf16-mixed'"):
        recipe("bf16_mixed")
    with pytest.raises(PlanError, match="lossscale: unknown key; did you mean 'loss_scale'"):
        recipe("fp16-mixed", lossscale=None)
