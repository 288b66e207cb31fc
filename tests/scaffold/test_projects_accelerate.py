# SPDX-License-Identifier: Apache-2.0
"""Accelerate projects train here, alone, under DDP and with every ZeRO stage; FSDP2 says that it needs GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scaffold.projects import run_python, write
from tests.scaffold.resuming import in_two_parts, report_of

pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallel", "task", "trouble", "language", "said"),
    [
        ("single", "text", "none", "zh", "ok    精度已生效: bfloat16 x 9, float32 x 2"),
        ("ddp", "image", "slow", "en", "ok    precision active: bfloat16 x 14"),
        pytest.param(*("zero1", "tabular", "none", "zh", "ok    精度已生效: bfloat16 x 8"), marks=pytest.mark.thorough),
        pytest.param(
            *("zero2", "text", "nan", "en", "ok    precision active: bfloat16 x 9, float32 x 2"),
            marks=pytest.mark.thorough,
        ),
        ("zero3", "tabular", "oom", "zh", "ok    精度已生效: bfloat16 x 8"),
        ("fsdp2", "tabular", "oom", "en", "ok    precision active: bfloat16 x 8"),
    ],
)
def test_its_own_test_passes(tmp_path: Path, parallel: str, task: str, trouble: str, language: str, said: str) -> None:
    if parallel.startswith("zero"):
        pytest.importorskip("deepspeed")
    project = write(
        tmp_path / "project",
        framework="accelerate",
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
    project = write(tmp_path / "project", framework="accelerate", task="tabular", device="a100", size="tiny")
    whole, parts = in_two_parts(project, steps=8, first=5)
    assert parts == pytest.approx(whole, rel=1e-5)
    printed = run_python(project, "train.py", "--resume", "--out", "elsewhere", code=2)
    assert "elsewhere: there is no checkpoint to resume from" in printed


def test_accelerate_launch_starts_it_by_its_configuration(tmp_path: Path) -> None:
    project = write(tmp_path / "project", framework="accelerate", task="tabular", device="a100", size="tiny")
    launcher = ("-m", "accelerate.commands.launch", "--config_file", "accelerate_config.yaml")
    printed = run_python(project, *launcher, "train.py", "--steps", "2")
    assert "checkpoint  runs/latest/step2" in printed


def test_sharding_on_a_cpu_is_said_to_be_none(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="accelerate", parallel="fsdp2", task="tabular", device="a100", size="tiny"
    )
    report = report_of(project, "--steps", "2")
    assert "Accelerate shards on GPUs only: here each process keeps a copy" in report["printed"]
    assert "POLICY = {" in (project / "precision.py").read_text()


def test_processes_that_outnumber_the_gpus_see_none(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="accelerate", parallel="ddp", task="tabular", device="a100", size="tiny"
    )
    code = (
        "import os, sys, torch; torch.cuda.device_count = lambda: 2; os.environ.pop('CUDA_VISIBLE_DEVICES', None); "
        "os.environ['LOCAL_WORLD_SIZE'] = sys.argv[1]; import few_gpus; print(dict(os.environ))"
    )
    assert "CUDA_VISIBLE_DEVICES" not in run_python(project, "-c", code, "2")
    assert "'CUDA_VISIBLE_DEVICES': ''" in run_python(project, "-c", code, "3")


def test_float16_on_a_cpu_is_said_to_be_float32(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="accelerate", task="tabular", device="v100", size="tiny", trouble="nan"
    )
    report = report_of(project, "--steps", "2")
    assert "Accelerate has no float16 on CPUs: training in float32" in report["printed"]
    assert report["dtypes"]["compute"] == {"float32": 8}
