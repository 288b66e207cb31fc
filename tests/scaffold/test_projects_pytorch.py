# SPDX-License-Identifier: Apache-2.0
"""PyTorch projects train here: their own test and check, their resuming, and what they say to bad data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scaffold.projects import run_python, write

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("parallel", "task", "device", "trouble", "language", "said"),
    [
        ("single", "image", "nvidia-a100", "slow", "en", "ok    precision active: bfloat16 x 14"),
        ("ddp", "tabular", "nvidia-t4", "oom", "zh", "ok    精度已生效: float16 x 8"),
        ("fsdp2", "image", "nvidia-a100", "none", "en", "ok    precision active: bfloat16 x 14"),
        ("fsdp2", "text", "nvidia-t4", "nan", "zh", "ok    精度已生效: float16 x 10, float32 x 1"),
    ],
)
def test_its_own_test_passes(
    tmp_path: Path, parallel: str, task: str, device: str, trouble: str, language: str, said: str
) -> None:
    project = write(
        tmp_path / "project",
        parallel=parallel,
        task=task,
        device=device,
        trouble=trouble,
        language=language,
        size="tiny",
    )
    printed = run_python(project, "test.py")
    assert said in printed
    assert "FAIL" not in printed


def test_check_shows_the_formats_of_both_runs(tmp_path: Path) -> None:
    project = write(tmp_path / "project", device="t4", task="tabular", size="tiny", trouble="nan")
    printed = run_python(project, "check.py")
    assert "compute    float32 x 8   float16 x 7, float32 x 1" in printed
    assert "weights    float32 x 24  float32 x 24" in printed
    assert "The precision is active: modules compute in float16." in printed
    text = (project / "precision.py").read_text()
    (project / "precision.py").write_text(text.replace("DTYPE = torch.float16", "DTYPE = torch.bfloat16"))
    printed = run_python(project, "check.py", code=1)
    assert "The precision is NOT active: no module computes in float16; seen: bfloat16 x 7, float32 x 1" in printed


def test_a_float32_plan_has_nothing_to_activate(tmp_path: Path) -> None:
    project = write(tmp_path / "project", device="p100", task="tabular", size="tiny")
    assert "Float32 throughout, as planned" in run_python(project, "check.py")


@pytest.mark.parametrize(("parallel", "task"), [("single", "text"), ("ddp", "tabular"), ("fsdp2", "tabular")])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, parallel: str, task: str) -> None:
    project = write(tmp_path / "project", device="t4", parallel=parallel, task=task, size="tiny")
    launch = LAUNCH if parallel != "single" else ()
    small = ("--micro-batch", "4", "--accumulate", "2")

    def train(steps: int, *options: str) -> dict[str, Any]:
        run_python(
            project, *launch, "train.py", "--steps", str(steps), *small, *options, "--report", str(tmp_path / "r.json")
        )
        report: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
        return report

    whole = train(6, "--out", str(tmp_path / "whole"))
    train(4, "--out", str(tmp_path / "parts"))
    rest = train(6, "--out", str(tmp_path / "parts"), "--resume")
    assert (rest["first_step"], rest["last_step"]) == (5, 6)
    assert rest["losses"] == pytest.approx(whole["losses"][4:], rel=1e-6)
    assert rest["evaluation"]["value"] == pytest.approx(whole["evaluation"]["value"], rel=1e-6)


def test_several_processes_train_what_one_does(tmp_path: Path) -> None:
    losses = {}
    for parallel in ("single", "ddp", "fsdp2"):
        project = write(tmp_path / parallel, device="p100", parallel=parallel, task="tabular", size="tiny")
        launch, batch = ((), "16") if parallel == "single" else (LAUNCH, "8")
        options = ("--steps", "3", "--accumulate", "2", "--micro-batch", batch)
        run_python(project, *launch, "train.py", *options, "--report", "report.json")
        losses[parallel] = json.loads((project / "report.json").read_text())["losses"]
    # The same examples in each step, in another order: only rounding differs.
    assert losses["ddp"] == pytest.approx(losses["fsdp2"], rel=1e-5)
    assert losses["ddp"][0] == pytest.approx(losses["single"][0], rel=0.5)


OVERFLOWS = [
    (
        "self.qkv(x)",
        "self.qkv(1e6 * x)",
        "blocks.0.attention.qkv (Linear): NaN or infinity in its torch.float16 output",
    ),
    ("x = x + self.attention(", "x = x + 1e6 * self.attention(", "forward of blocks.0 hands NaN or infinity to"),
]


@pytest.mark.parametrize(("right", "wrong", "said"), OVERFLOWS)
def test_find_nan_names_the_module(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    project = write(tmp_path / "project", device="t4", task="text", size="tiny", trouble="nan")
    text = (project / "model.py").read_text()
    assert right in text
    (project / "model.py").write_text(text.replace(right, wrong))
    options = ("train.py", "--steps", "2", "--micro-batch", "2", "--accumulate", "1")
    assert "--find-nan names the module where it begins" in run_python(project, *options, code=1)
    assert said in run_python(project, *options, "--find-nan", code=1)
