# SPDX-License-Identifier: Apache-2.0
"""The three examples, planned and trained as the README says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from floatwise.hardware import best_here

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.slow


def floatwise(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatwise", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=True)


def planned(folder: Path, *arguments: str) -> dict[str, Any]:
    decision: dict[str, Any] = json.loads(floatwise("plan", *arguments, "--json", cwd=folder).stdout)
    return decision


@pytest.fixture(scope="module")
def text_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text_gpt")
    planned(folder, str(EXAMPLES / "text_gpt.py"), "--target", "nvidia-t4", "--steps", "6")
    return folder


@pytest.fixture(scope="module")
def gated_ffn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated_ffn")
    # At this size no GPU would gain by 16 bits, and a prediction would say so: the values are what counts here.
    planned(folder, str(EXAMPLES / "gated_ffn.py"), "--target", "nvidia-t4", "--no-rehearse")
    return folder


@pytest.mark.parametrize(
    ("target", "recipe", "refused"),
    [
        ("nvidia-t4", "fp16-mixed", "bf16-mixed"),
        ("nvidia-v100", "fp16-mixed", "bf16-mixed"),
        ("nvidia-a100", "bf16-mixed", "fp8-tensorwise"),
        ("cpu-avx512-bf16", "bf16-mixed", "fp16-mixed"),
        ("cpu-avx2", "fp32", "bf16-mixed"),
        ("GTX 1660 Ti", "fp32", "fp16-mixed"),
    ],
)
def test_text_gpt_for_other_devices(text_gpt: Path, target: str, recipe: str, refused: str) -> None:
    decision = planned(text_gpt, "--recording", "precision.recording", "--target", target)
    assert decision["recipe"] == recipe
    assert decision["islands"] == []
    assert decision["measured"] is None
    assert decision["verdicts"][refused]["status"] == "refused"
    assert decision["verdicts"][refused]["reasons"][0]["text"]
    if recipe == "fp16-mixed":
        low, high = decision["loss_scale"]["window_log2"]
        assert low < high
        assert 2.0**low <= decision["loss_scale"]["initial"] <= 2.0**high
    else:
        assert decision["loss_scale"] is None


@pytest.mark.parametrize("target", ["nvidia-t4", "nvidia-v100"])
def test_gated_ffn_keeps_the_overflowing_block_in_float32(gated_ffn: Path, target: str) -> None:
    decision = planned(gated_ffn, "--recording", "precision.recording", "--target", target)
    assert decision["recipe"] == "fp16-mixed"
    modules = [island["module"] for island in decision["islands"]]
    assert [m.rpartition(".")[2] for m in modules] == ["wi_0", "wi_1", "wo"]
    assert len({m.rpartition(".")[0] for m in modules}) == 1


def test_gated_ffn_is_plain_bfloat16_on_an_a100(gated_ffn: Path) -> None:
    decision = planned(gated_ffn, "--recording", "precision.recording", "--target", "nvidia-a100")
    assert (decision["recipe"], decision["islands"]) == ("bf16-mixed", [])


def test_gated_ffn_trains_in_float16_with_its_islands_and_not_without(gated_ffn: Path) -> None:
    planned(gated_ffn, "--recording", "precision.recording", "--target", "nvidia-t4")
    script = ("run", str(EXAMPLES / "gated_ffn.py"))
    few = ("--", "--steps", "2")
    assert "0 skipped" in floatwise(*script, *few, cwd=gated_ffn).stderr
    assert "not finite" in floatwise(*script, "--recipe", "fp16-mixed", *few, cwd=gated_ffn).stderr


def accuracy(output: str) -> float:
    return float(re.findall(r"test accuracy ([0-9.]+)", output)[-1])


def test_digits_cnn_reaches_float32_accuracy(tmp_path: Path) -> None:
    script = str(EXAMPLES / "digits_cnn.py")
    plain = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    under = floatwise("run", script, cwd=tmp_path)
    assert accuracy(under.stdout) == pytest.approx(accuracy(plain.stdout), abs=0.01)


@pytest.mark.skipif(
    best_here().device is None or not best_here().device.has_matrix("bfloat16"),  # type: ignore[union-attr]
    reason="this machine has no bfloat16 matrix unit",
)
def test_text_gpt_here(tmp_path: Path) -> None:
    decision = planned(tmp_path, str(EXAMPLES / "text_gpt.py"), "--steps", "8")
    measured = decision["measured"]
    assert measured["recipe"] == "bf16-mixed"
    assert measured["loss_parity"]["within_spread"]
    assert measured["memory_ratio"] < 0.85
    # Other tests run beside this one: how much faster it is, the benchmark tells.
    assert decision["recipe"] == ("bf16-mixed" if measured["speed_ratio"] >= 0.95 else "fp32")
