# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from floatwise.errors import BadFileError, PlanError, UnknownNameError
from floatwise.plan import RECIPES, ModulePolicy, Policy, Reductions, recipe, save_plan
from floatwise.torch.plan_support import APPLIED_RECIPES, as_plan, check_plan


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_each_recipe_is_applied_or_refused_with_one_that_is(name: str) -> None:
    if name in APPLIED_RECIPES:
        assert as_plan(name) == recipe(name)
        return
    with pytest.raises(PlanError) as caught:
        as_plan(name)
    first, *rest = str(caught.value).splitlines()
    assert repr(name) in first
    assert all(applied in first for applied in APPLIED_RECIPES)
    assert any(f"use {applied!r}" in rest[0] for applied in APPLIED_RECIPES)


def test_a_plan_a_name_and_a_file_say_the_same(tmp_path: Path) -> None:
    plan = recipe("bf16-mixed")
    save_plan(plan, tmp_path / "precision.toml")
    assert as_plan(plan) == as_plan("bf16-mixed") == as_plan(tmp_path / "precision.toml")
    assert as_plan(str(tmp_path / "precision.toml")) == plan


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"(?s)did you mean 'bf16-mixed'.*path of a plan file"):
        as_plan("bf16_mixed")
    with pytest.raises(BadFileError):
        as_plan("no/such/plan.toml")


@pytest.mark.parametrize("key", ["accumulate_dtype", "buffer_dtype"])
def test_what_is_not_applied_is_named(key: str) -> None:
    with pytest.raises(PlanError, match=rf"reductions\.{key} 'bfloat16'.*\n.*write {key} = 'float32'"):
        check_plan(recipe("bf16-mixed", reductions=Reductions.model_validate({key: "bfloat16"})))


def test_gradients_may_be_summed_over_processes_in_16_bits() -> None:
    plan = recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16"))
    assert check_plan(plan) is plan


def test_lower_modules_in_a_float32_plan_are_refused() -> None:
    lower = ModulePolicy(module="head", policy=Policy(compute_dtype="bfloat16"))
    with pytest.raises(PlanError, match="write 'bfloat16' as the default compute_dtype"):
        check_plan(recipe("fp32", modules=(lower,)))
