# SPDX-License-Identifier: Apache-2.0
"""Composer's Trainer written and read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError, PlanError
from floatwise.exporters import get_system
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.version import Version
from floatwise.plan import LossScale, Plan, Reductions, recipe

GOLDEN = """from composer import Trainer
from torch.amp import GradScaler


def make_trainer(model, train_dataloader, **arguments):
    trainer = Trainer(
        model=model,
        train_dataloader=train_dataloader,
        precision="amp_fp16",
        **arguments,
    )
    # Trainer makes a GradScaler of PyTorch's defaults; give fit() no precision, or it makes another.
    trainer.state.scaler = GradScaler(
        init_scale=1024.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    )
    return trainer
"""


def test_the_source_is_as_expected() -> None:
    assert exported(recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0)), "composer").text == GOLDEN


@pytest.mark.parametrize(
    ("name", "precision"),
    [("fp32", "fp32"), ("tf32", "fp32"), ("bf16-mixed", "amp_bf16"), ("fp8-tensorwise", "amp_fp8")],
)
def test_every_recipe_has_its_precision(name: str, precision: str) -> None:
    assert f'precision="{precision}",' in exported(recipe(name), "composer").text


@pytest.mark.parametrize(
    ("version", "argument"),
    [("0.32.1", 'parallelism_config={"fsdp": {"mixed_precision": '), ("0.22", ' fsdp_config={"mixed_precision": ')],
)
def test_with_fsdp_the_formats_of_sums_and_buffers_are_kept(version: str, argument: str) -> None:
    sums = Reductions(reduce_dtype="bfloat16", buffer_dtype="bfloat16")
    result = exported(recipe("bf16-mixed", reductions=sums), "composer", version=version, fsdp=1)
    formats = '{"param_dtype": "bf16", "reduce_dtype": "bf16", "buffer_dtype": "bf16"}'
    assert f"MIXED_PRECISION = {formats}\n" in result.text
    assert f"{argument}MIXED_PRECISION}}" in result.text
    assert result.reading.plan.reductions == sums


def test_with_fsdp_float16_is_scaled_by_the_sharded_scaler() -> None:
    text = exported(recipe("fp16-mixed"), "composer", fsdp=1).text
    assert "trainer.state.scaler = ShardedGradScaler(\n" in text


def test_float8_is_tensorwise_only() -> None:
    assert "one scale factor per tensor" in said(exported(recipe("fp8-rowwise"), "composer"))["scaling"]
    with pytest.raises(PlanError, match="no argument reaches another recipe"):
        exported(recipe("mxfp8"), "composer")


def test_that_a_cpu_takes_float32_only_is_told() -> None:
    def told(plan: Plan) -> bool:
        return any("all but fp32 on a CPU" in note.what.en for note in exported(plan, "composer").notes)

    assert told(recipe("bf16-mixed"))
    assert not told(recipe("fp32"))


@pytest.mark.parametrize(
    ("source", "compute", "sums", "codes"),
    [
        ("Trainer(model=m)", "float16", "float32", ["float16-by-default"]),
        ("Trainer(model=m, precision=Precision.AMP_BF16)", "bfloat16", "float32", []),
        ("Trainer(precision='amp_bf16', parallelism_config={'fsdp': {}})", "bfloat16", "float32", []),
        (
            "Trainer(precision='amp_bf16', parallelism_config={'fsdp': {'mixed_precision': 'pure'}})",
            "bfloat16",
            "bfloat16",
            [],
        ),
        ("Trainer(precision='fp32')", "float32", "float32", []),
    ],
)
def test_scripts_are_read(source: str, compute: str, sums: str, codes: list[str]) -> None:
    found = reading(source, "composer")
    assert found.plan.compute_dtype == compute
    assert found.plan.reductions.reduce_dtype == sums
    assert [finding.code for finding in found.findings] == codes


def test_fsdp_casts_buffers_by_default() -> None:
    source = "Trainer(precision='amp_bf16', parallelism_config={'fsdp': {}})"
    assert reading(source, "composer").plan.reductions.buffer_dtype == "bfloat16"


BAD: list[Any] = [
    ("x = 1", "0.32.1", "given:1: there is no call of Trainer(...) in this source"),
    (
        "Trainer(\n  precision='amp_bf16_')",
        "0.32.1",
        'given:2: Trainer.precision: got "amp_bf16_", expected "fp32" or "amp_bf16" or "amp_fp16" or "amp_fp8"; did '
        "you mean 'amp_bf16'?",
    ),
    (
        "Trainer(precision='amp_bf16', fsdp_config={})",
        "0.26",
        "given:1: Trainer.fsdp_config: Composer 0.26 does not have this key; it is there before 0.26 only: "
        'parallelism_config={"fsdp": ...}',
    ),
    (
        "Trainer(precision='amp_bf16', parallelism_config={'fsdp': {'mixed_precision': 'half'}})",
        "0.32.1",
        "given:1: Trainer.parallelism_config: got mixed_precision 'half', expected DEFAULT, PURE or FULL",
    ),
    (
        "Trainer(precision='amp_fp16')\nGradScaler(growth_factor=1)",
        "0.32.1",
        "given:2: GradScaler.growth_factor: got 1",
    ),
]


@pytest.mark.parametrize(("source", "version", "message"), BAD)
def test_bad_sources_are_told_with_their_line(source: str, version: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        read_settings(settings_of_text(source, "python", "given"), get_system("composer"), Version.of(version))
    assert str(error.value).startswith(message)
