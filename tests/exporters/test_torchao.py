# SPDX-License-Identifier: Apache-2.0
"""torchao's float8 training written and read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, PlanError
from floatwise.plan import ModulePolicy, Policy, recipe

MODULES = (
    ModulePolicy(module="head", policy=Policy(compute_dtype="bfloat16", output_dtype="bfloat16")),
    ModulePolicy(module="encoder.**", policy=Policy(compute_dtype="float32")),
)

GOLDEN = r"""import re
import warnings

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

# model = to_float8(model) before the optimizer is made and before torch.compile, which makes float8 fast;
# run forward and the loss under autocast().
CONFIG = Float8LinearConfig.from_recipe_name("rowwise")
# Modules that stay out of float8: the plan's glob, and the same as a regular expression.
NOT_FLOAT8 = {
    "head": "head",
    "encoder.**": r"encoder(?:\.[^\.]+)*",
}


def is_float8(module, name):
    # float8 units multiply blocks of 16; subclasses of Linear would lose their own forward.
    fits = type(module) is nn.Linear and all(size % 16 == 0 for size in module.weight.shape)
    return fits and not any(re.fullmatch(regex, name, re.DOTALL) for regex in NOT_FLOAT8.values())


def to_float8(model):
    if not any(is_float8(module, name) for name, module in model.named_modules()):
        warnings.warn("no linear layer is eligible for float8: sizes are no multiples of 16, or all are left out")
    return convert_to_float8_training(model, config=CONFIG, module_filter_fn=is_float8)


def autocast(device_type="cuda"):
    return torch.autocast(device_type, dtype=torch.bfloat16)
"""


def test_the_source_is_as_expected() -> None:
    assert exported(recipe("fp8-rowwise", modules=MODULES), "torchao").text == GOLDEN


def test_islands_in_float32_become_bfloat16_and_it_is_said() -> None:
    result = exported(recipe("fp8-rowwise", modules=MODULES), "torchao")
    assert [e.module for e in result.reading.plan.modules] == ["head", "encoder.**"]
    assert {e.policy.compute_dtype for e in result.reading.plan.modules} == {"bfloat16"}
    assert "not in float32" in said(result)['modules["encoder.**"].policy.compute_dtype']
    assert 'modules["head"].policy.compute_dtype' not in said(result)


def test_mx_is_written_with_its_own_config_and_leaves_layers_with_a_bias_out() -> None:
    text = exported(recipe("mxfp8", float32_matmul="tf32"), "torchao").text
    assert "CONFIG = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_RCEIL)\n" in text
    assert "module.bias is None and all(size % 32 == 0 for size in module.weight.shape)" in text
    assert 'torch.set_float32_matmul_precision("high")\n' in text


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("bf16-mixed", "0.18.0", "Export to torch-amp"),
        ("mxfp8", "0.16.0", "Use torchao 0.17 or newer"),
    ],
)
def test_what_torchao_cannot_train_is_refused(name: str, version: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        exported(recipe(name), "torchao", version=version)


def test_amd_format_is_the_devices_choice() -> None:
    plan = recipe("fp8-tensorwise", policy=Policy(compute_dtype="float8_e4m3fnuz"))
    assert "e4m3fnuz on AMD's MI300" in said(exported(plan, "torchao"))["policy.compute_dtype"]


CAST = "torch.autocast('cuda', dtype=torch.bfloat16)\n"


@pytest.mark.parametrize(
    ("source", "scaling"),
    [
        ("convert_to_float8_training(m)", "tensorwise"),
        ("c = Float8LinearConfig(pad_inner_dim=True)\nconvert_to_float8_training(m, config=c)", "tensorwise"),
        ("Float8LinearConfig.from_recipe_name(Float8LinearRecipeName.ROWWISE_WITH_GW_HP)", "rowwise_with_gw_hp"),
        ("Float8LinearConfig(cast_config_weight=CastConfig(scaling_granularity=G.AXISWISE))", "rowwise"),
        (
            "Float8LinearConfig(cast_config_weight=CastConfig(scaling_granularity=G.AXISWISE), "
            "cast_config_input_for_grad_weight=CastConfig(scaling_type=T.DISABLED))",
            "rowwise_with_gw_hp",
        ),
        ("quantize_(m, MXFP8TrainingOpConfig(wgrad_with_hp=True))", "mx"),
    ],
)
def test_other_spellings_are_read(source: str, scaling: str) -> None:
    assert reading(CAST + source, "torchao").plan.scaling == scaling


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("convert_to_float8_training(m)", ["float8-without-autocast", "float8-without-filter"]),
        (CAST + "convert_to_float8_training(m, module_filter_fn=f)", ["unknown-filter"]),
        (
            "model.to(torch.bfloat16)\nconvert_to_float8_training(m, module_filter_fn=f)",
            ["unknown-filter", "pure-16-bit"],
        ),
        ("model.bfloat16()\nconvert_to_float8_training(m, module_filter_fn=f)", ["unknown-filter", "pure-16-bit"]),
    ],
)
def test_what_is_dangerous_is_found(source: str, codes: list[str]) -> None:
    assert [finding.code for finding in reading(source, "torchao").findings] == codes


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "given:1: there is no call of convert_to_float8_training"),
        (
            "\nc = Float8LinearConfig.from_recipe_name('mxfp8')",
            'given:2: from_recipe_name: got the recipe \'mxfp8\', expected "tensorwise" or "rowwise"',
        ),
        (
            "Float8LinearConfig(\n  pad_inner_dims=True)",
            "given:2: Float8LinearConfig.pad_inner_dims: torchao knows no such key; did you mean 'pad_inner_dim'",
        ),
        ("Float8LinearConfig(emulate='yes')", 'given:1: Float8LinearConfig.emulate: got "yes", expected true or false'),
        ("convert_to_float8_training(m)\nNOT_FLOAT8 = {'a[': ''}", "given:2: NOT_FLOAT8: got the module glob 'a['"),
    ],
)
def test_bad_sources_are_told_with_their_line(source: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        reading(source, "torchao")
    assert str(error.value).startswith(message)


def test_chinese_comments_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = recipe("fp8-tensorwise", modules=MODULES[:1])
    english = exported(plan, "torchao")
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    chinese = exported(plan, "torchao")
    assert "不使用 float8 的模块" in chinese.text
    assert chinese.reading == english.reading
