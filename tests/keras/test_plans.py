# SPDX-License-Identifier: Apache-2.0
"""Which plans Keras can be told, without Keras, and what the package says when it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import floatwise as fw
from floatwise.errors import BadInputError, PlanError, UnknownNameError
from floatwise.keras.plan_support import APPLIED_RECIPES, as_plan
from floatwise.plan import RECIPES, Plan, Reductions, recipe, save_plan


@pytest.mark.parametrize("name", APPLIED_RECIPES)
def test_recipes_that_keras_knows_are_applied(name: str) -> None:
    assert as_plan(name) == recipe(name)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - set(APPLIED_RECIPES)))
def test_other_recipes_are_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(PlanError, match=r"(?s)applied to Keras: bf16-mixed.*\n(use|write)"):
        as_plan(name)


def test_a_plan_file_is_read(tmp_path: Path) -> None:
    save_plan(recipe("bf16-mixed"), tmp_path / "precision.toml")
    assert as_plan(tmp_path / "precision.toml").compute_dtype == "bfloat16"


def low_sums() -> Plan:
    return recipe("bf16-mixed", reductions=Reductions(reduce_dtype="bfloat16"))


def test_sums_in_16_bits_are_refused() -> None:
    with pytest.raises(PlanError, match="write reduce_dtype = 'float32'"):
        as_plan(low_sums())


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fp16-mixed'"):
        as_plan("fp16-mixd")
    with pytest.raises(BadInputError, match="as the plan"):
        as_plan(16)  # type: ignore[arg-type]


def test_names_are_listed_before_keras_is_loaded() -> None:
    code = (
        "import sys, floatwise as fw\n"
        "assert 'apply' in dir(fw.keras) and 'keras' not in sys.modules\n"
        "sys.modules['keras'] = None\n"
        "try: fw.keras.apply\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this needs Keras 3 and its backend" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'aply'"):
        _ = fw.keras.aply
