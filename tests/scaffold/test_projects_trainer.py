# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer projects train here, alone, under DDP and with every ZeRO stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scaffold.projects import run_python, write
from tests.scaffold.resuming import in_two_parts, report_of

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallel", "task", "trouble", "language", "said"),
    [
        ("single", "image", "none", "en", "ok    precision active: bfloat16 x 14"),
        ("ddp", "tabular", "slow", "zh", "ok    精度已生效: bfloat16 x 8"),
        pytest.param(
            *("zero1", "image", "nan", "en", "ok    precision active: bfloat16 x 14"), marks=pytest.mark.thorough
        ),
        pytest.param(*("zero2", "tabular", "oom", "zh", "ok    精度已生效: bfloat16 x 8"), marks=pytest.mark.thorough),
        ("zero3", "text", "none", "en", "ok    precision active: bfloat16 x 9, float32 x 2"),
    ],
)
def test_its_own_test_passes(tmp_path: Path, parallel: str, task: str, trouble: str, language: str, said: str) -> None:
    if parallel.startswith("zero"):
        pytest.importorskip("deepspeed")
    project = write(
        tmp_path / "project",
        framework="trainer",
        parallel=parallel,
        task=task,
        trouble=trouble,
        language=language,
        device="nvidia-a100",
        size="tiny",
    )
    printed = run_python(project, "test.py")
    assert said in printed
    assert "FAIL" not in printed


def test_it_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    project = write(tmp_path / "project", framework="trainer", task="tabular", device="a100", size="tiny")
    whole, parts = in_two_parts(project, steps=8, first=5)
    assert parts == pytest.approx(whole, rel=1e-5)
    printed = run_python(project, "train.py", "--resume", "--out", "elsewhere", code=2)
    assert "elsewhere: there is no checkpoint to resume from" in printed


def test_float16_on_a_cpu_is_said_to_be_float32(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="trainer", task="tabular", device="v100", size="tiny", trouble="nan"
    )
    report = report_of(project, "--steps", "2")
    assert "Trainer has no float16 on CPUs: training in float32" in report["printed"]
    assert report["dtypes"]["compute"] == {"float32": 8}
