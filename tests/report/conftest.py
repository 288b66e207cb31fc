# SPDX-License-Identifier: Apache-2.0
"""Decisions built by hand: what the planner would hand to the reports."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from floatwise.language import Text
from floatwise.plan import recipe
from floatwise.planner.decision import (
    Decision,
    Finding,
    Island,
    LossParity,
    LossScaleChoice,
    Measured,
    RoleRow,
    Verdict,
)
from floatwise.planner.reasons import REASONS, Reason

TEST_REASONS = {
    "test_fast": Text(
        "{device} multiplies {format} matrices {factor} times as fast as float32.",
        "{device} 的 {format} 矩阵乘法速度是 float32 的 {factor} 倍。",
    ),
    "test_range": Text(
        "Every recorded value fits into the range of {format}.", "所有录制到的数值都在 {format} 的范围之内。"
    ),
    "test_overflow": Text(
        "{module} reaches {amax}, above the largest {format}, {limit}.",
        "{module} 的数值达到 {amax}，超过 {format} 的最大值 {limit}。",
    ),
    "test_norm": Text("Sums over many elements lose digits in 16 bits.", "对大量元素求和时，16 位格式会丢失有效数字。"),
    "test_autocast": Text(
        "The script turns autocast on itself; the plan takes its place.",
        "脚本自行启用了 autocast；将由该方案取代。",
    ),
    "test_hostile": Text("{text}", "{text}"),
}


@pytest.fixture(autouse=True)
def _reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, text in TEST_REASONS.items():
        monkeypatch.setitem(REASONS, code, text)


@pytest.fixture(params=["en", "zh"])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test of a report in both languages."""
    monkeypatch.setenv("FLOATWISE_LANG", request.param)
    return str(request.param)


@pytest.fixture
def decide() -> Callable[..., Decision]:
    """Returns the maker of decisions."""
    return decision


@pytest.fixture(params=[60, 80, 200])
def console(request: pytest.FixtureRequest) -> Console:
    """Returns a console without colour that writes to a string."""
    return Console(file=io.StringIO(), width=request.param, color_system=None, legacy_windows=False)


@pytest.fixture
def printed(console: Console) -> Callable[[], str]:
    """Returns what the console was given so far."""

    def read() -> str:
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    return read


def decision(**changes: Any) -> Decision:
    """Returns a decision for bfloat16 on this machine, changed as asked."""
    norm = Reason("test_norm", {})
    islands = tuple(Island(f"transformer.h.{i}.ln_{j}", norm) for i in range(12) for j in (1, 2))
    scale = LossScaleChoice((6, 23), 2.0**13, "transformer.h.11.mlp.c_proj")
    peak = Reason("test_fast", {"device": "NVIDIA H200", "format": "bfloat16", "factor": 15})
    wide = Reason("test_range", {"format": "bfloat16"})
    logits = Reason("test_overflow", {"module": "lm_head", "amax": 71200.0, "format": "float16", "limit": 65504})
    verdicts = (
        Verdict("bf16-mixed", "chosen", (peak, wide), islands),
        Verdict("fp16-mixed", "accepted", (logits,), (Island("lm_head", logits),), scale),
        Verdict("fp8-tensorwise", "not_worth_it", (Reason("test_range", {"format": "float8_e4m3fn"}),)),
        Verdict("fp16-master", "refused", (logits, norm)),
        Verdict("fp32", "accepted", ()),
    )
    base = Decision(
        target="nvidia-h200",
        target_name="NVIDIA H200",
        here=True,
        recipe="bf16-mixed",
        plan=recipe("bf16-mixed"),
        reasons=(peak, wide),
        verdicts=verdicts,
        findings=(
            Finding("warning", "train.py:41", Reason("test_autocast", {})),
            Finding("note", "", norm),
        ),
        evidence=evidence(),
        script="train.py",
        steps=20,
        parameters=124_439_808,
        matrix_share=0.934,
        measured=measured(),
        islands=islands,
    )
    return replace(base, **changes)


def measured(**changes: Any) -> Measured:
    """Returns a comparison in which the plan is better, changed as asked."""
    float32 = tuple(2.0 + 9.0 * math.exp(-step / 12) + 0.05 * math.sin(step * 1.7) for step in range(60))
    planned = tuple(loss + 0.02 * math.sin(step * 2.9) for step, loss in enumerate(float32))
    base = Measured(
        recipe="bf16-mixed",
        device="NVIDIA H200",
        steps=60,
        speed_ratio=2.31,
        speed_spread=(2.24, 2.38),
        memory_ratio=0.622,
        planned_bytes=6_820_000_000,
        float32_bytes=10_960_000_000,
        step_seconds=(0.0364, 0.0841),
        losses={"planned": planned, "float32": float32},
        loss_parity=LossParity(True, 2.118, (2.121, 2.139, 2.106), (2.094, 2.151)),
    )
    return replace(base, **changes)


def evidence() -> tuple[RoleRow, ...]:
    """Returns six roles in two formats."""
    roles = {
        "weight": (1.83, "transformer.wte"),
        "input": (412.0, "transformer.h.11.mlp.c_proj"),
        "output": (71200.0, "lm_head"),
        "grad_output": (0.0021, "lm_head"),
        "weight_grad": (0.31, "transformer.wte"),
        "update": (3.0e-4, "transformer.wpe"),
    }
    rows = []
    for role, (amax, worst) in roles.items():
        over = 3.1e-7 if amax > 65504 else 0.0
        rows.append(RoleRow(role, "float16", amax, worst, 0.0268 if "grad" in role else 0.0003, over, 73.2))
        rows.append(RoleRow(role, "bfloat16", amax, worst, 0.0, 0.0, None if role == "update" else 55.1))
    return tuple(rows)
