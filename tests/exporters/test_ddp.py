# SPDX-License-Identifier: Apache-2.0
"""DDP written and read: golden text, the communication hook, what is lost, what is wrong in a script."""

from __future__ import annotations

import pytest
from tests.exporters.texts import exported, reading, said

from floatwise.errors import BadFileError
from floatwise.plan import LossScale, Reductions, recipe

FLOAT16 = '''import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook


def autocast():
    """Around forward and loss; backward stays outside. The model stays in float32."""
    return torch.autocast("cuda", dtype=torch.float16)


def compress_gradients(ddp_model):
    """Once, after DistributedDataParallel(model): gradients are summed over processes in float16."""
    ddp_model.register_comm_hook(state=None, hook=fp16_compress_hook)


SCALER = torch.amp.GradScaler(
    "cuda",
    init_scale=65536.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
)
'''
FLOAT32 = '''import torch


def autocast():
    """包住前向与损失；反向在其外。模型保持 float32。"""
    return torch.autocast("cpu", enabled=False)
'''


def test_float16_is_this_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    assert exported(recipe("fp16-mixed", reductions=Reductions(reduce_dtype="float16")), "ddp").text == FLOAT16


def test_float32_is_this_text_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    result = exported(recipe("fp32"), "ddp", device="cpu")
    assert result.text == FLOAT32
    assert result.notes == ()


@pytest.mark.parametrize(
    ("device", "reduce", "hook", "comes_back"),
    [
        ("cuda", "bfloat16", "bf16_compress_hook", "bfloat16"),
        ("cuda", "float32", None, "float32"),
        ("cpu", "bfloat16", None, "float32"),  # DDP takes bf16_compress_hook with NCCL and XCCL only
    ],
)
def test_the_hook_is_that_of_the_reduction(device: str, reduce: str, hook: str | None, comes_back: str) -> None:
    result = exported(recipe("bf16-mixed", reductions=Reductions(reduce_dtype=reduce)), "ddp", device=device)
    assert ("compress_hook" in result.text) == (hook is not None)
    assert hook is None or hook in result.text
    assert result.reading.plan.reductions.reduce_dtype == comes_back
    assert ("reductions.reduce_dtype" in said(result)) == (reduce != comes_back)


def test_float16_gradients_of_a_bfloat16_plan_keep_their_scaler() -> None:
    plan = recipe("bf16-mixed", loss_scale=LossScale(), reductions=Reductions(reduce_dtype="float16"))
    result = exported(plan, "ddp", scaler="floatwise")
    assert result.reading.plan.loss_scale == plan.loss_scale
    assert any("what passes 65504 there" in note.what.en for note in result.notes)


def test_what_is_lost_is_said() -> None:
    plan = recipe("fp16-master", reductions=Reductions(accumulate_dtype="float16", buffer_dtype="float16"))
    lost = said(exported(plan, "ddp"))
    assert set(lost) == {
        *("recipe", "policy.param_dtype", "policy.output_dtype", "weights.master"),
        *("reductions.accumulate_dtype", "reductions.buffer_dtype"),
        *("loss_scale.growth", "loss_scale.floor", "loss_scale.ceiling"),
    }


SCRIPT = """
model = DistributedDataParallel(Net())
{line}
"""


@pytest.mark.parametrize(
    ("line", "reduce"),
    [
        ("model.register_comm_hook(None, default_hooks.bf16_compress_hook)", "bfloat16"),
        ("model.register_comm_hook(state=group, hook=fp16_compress_hook); s = GradScaler()", "float16"),
        ("model.register_comm_hook(None, allreduce_hook)", "float32"),
        ("pass", "float32"),
        ("model = DistributedDataParallel(model.bfloat16())", "bfloat16"),
        ("model = model.bfloat16(); model = DDP(model)", "bfloat16"),
    ],
)
def test_the_hook_of_a_script_is_its_reduction(line: str, reduce: str) -> None:
    assert reading(SCRIPT.format(line=line), "ddp").plan.reductions.reduce_dtype == reduce


def test_other_hooks_are_not_guessed() -> None:
    with pytest.raises(BadFileError) as caught:
        reading(SCRIPT.format(line="model.register_comm_hook(None, powerSGD_hook)"), "ddp")
    assert str(caught.value) == (
        "given:3: register_comm_hook: got the hook 'powerSGD_hook'; the formats of bf16_compress_hook and "
        "fp16_compress_hook are known here, those of others are not: read the configuration without it"
    )
