# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed projects train here, on one process and on two, with everything in the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scaffold.projects import run_python, write
from tests.scaffold.resuming import in_two_parts, report_of

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.slow

# DeepSpeed has no float16 on CPUs; with its probe overridden it trains in it, slowly.
_WITH_FLOAT16 = """\
import runpy, sys
import torch
from deepspeed.accelerator import get_accelerator
accelerator = get_accelerator()
accelerator.is_fp16_supported = lambda: True
accelerator.supported_dtypes = lambda: [torch.float32, torch.float16]
sys.path.insert(0, ".")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("parallel", "task", "trouble", "language", "said"),
    [
        ("zero1", "tabular", "nan", "en", "ok    precision active: bfloat16 x 8"),
        ("zero2", "image", "slow", "zh", "ok    精度已生效: bfloat16 x 14"),
        ("zero3", "text", "none", "en", "ok    precision active: bfloat16 x 9, float32 x 2"),
    ],
)
def test_its_own_test_passes_on_two_processes(
    tmp_path: Path, parallel: str, task: str, trouble: str, language: str, said: str
) -> None:
    project = write(
        tmp_path / "project",
        framework="deepspeed",
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


def test_one_process_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="deepspeed", parallel="zero3", task="tabular", device="a100", size="tiny"
    )
    whole, parts = in_two_parts(project, steps=8, first=5)
    assert parts == pytest.approx(whole, rel=1e-5)
    printed = run_python(project, "train.py", "--resume", "--out", "elsewhere", code=2)
    assert "elsewhere: there is no checkpoint to resume from" in printed


def test_float16_stores_16_bit_weights_with_float32_masters(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project",
        framework="deepspeed",
        parallel="zero1",
        task="image",
        device="v100",
        size="tiny",
        trouble="nan",
    )
    report = report_of(project, "--steps", "2")
    assert "DeepSpeed has no float16 on CPUs: training in float32" in report["printed"]
    assert report["dtypes"]["compute"] == {"float32": 14}
    script = (project / "train.py").read_text()
    (project / "train.py").write_text(script.replace('if device.type == "cpu" and', "if False and"))
    (project / "with_float16.py").write_text(_WITH_FLOAT16)
    run_python(project, "with_float16.py", "train.py", "--steps", "4", "--report", "float16.json")
    assert '"compute": {\n      "float16": 13,\n      "float32": 1\n    }' in (project / "float16.json").read_text()
    assert '"weights": {\n      "float16": 41\n    }' in (project / "float16.json").read_text()
    assert '"optimizer": {\n      "float32": 3\n    }' in (project / "float16.json").read_text()
