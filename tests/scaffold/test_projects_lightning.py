# SPDX-License-Identifier: Apache-2.0
"""Lightning projects train here, alone, under DDP and under FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scaffold.projects import run_python, write
from tests.scaffold.resuming import in_two_parts, report_of

pytest.importorskip("lightning")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallel", "task", "device", "trouble", "language", "said"),
    [
        ("single", "image", "nvidia-v100", "nan", "en", "ok    precision active: float16 x 13, float32 x 1"),
        ("ddp", "tabular", "nvidia-a100", "slow", "zh", "ok    精度已生效: bfloat16 x 8"),
        ("fsdp2", "text", "nvidia-a100", "oom", "en", "ok    precision active: bfloat16 x 9, float32 x 2"),
        pytest.param(
            *("fsdp2", "image", "nvidia-a100", "none", "zh", "ok    精度已生效: bfloat16 x 14"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_its_own_test_passes(
    tmp_path: Path, parallel: str, task: str, device: str, trouble: str, language: str, said: str
) -> None:
    project = write(
        tmp_path / "project",
        framework="lightning",
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


def test_it_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="lightning", task="tabular", device="a100", size="tiny", trouble="oom"
    )
    whole, parts = in_two_parts(project, steps=8, first=5)
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole[0] == pytest.approx(0.7, rel=0.3)
    printed = run_python(project, "train.py", "--resume", "--out", "elsewhere", code=2)
    assert "elsewhere/last.ckpt: there is no checkpoint to resume from" in printed


def test_evaluations_and_checkpoints_come_when_asked_for(tmp_path: Path) -> None:
    project = write(tmp_path / "project", framework="lightning", task="tabular", device="a100", size="tiny")
    report = report_of(project, "--steps", "5", "--eval-every", "2", "--save-every", "2")
    assert report["printed"].count("evaluation  accuracy") == 3
    assert [path.name for path in (project / "runs" / "latest").iterdir()] == ["last.ckpt"]
