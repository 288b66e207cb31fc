# SPDX-License-Identifier: Apache-2.0
"""Flax projects train here: alone, data parallel and sharded over two devices that the CPU stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scaffold.projects import run_python, write

pytest.importorskip("flax")
pytestmark = pytest.mark.slow

SMALL = ("train.py", "--micro-batch", "4", "--accumulate", "2")
#: Its forward pass gives zero, its gradient is NaN at any loss scale.
NAN_GRADIENT = "jnp.sqrt(0.0 * x)"


def report_of(project: Path, *arguments: str) -> dict[str, Any]:
    run_python(project, *arguments, "--report", "report.json")
    report: dict[str, Any] = json.loads((project / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("parallel", "task", "device", "trouble", "language", "said"),
    [
        ("single", "text", "nvidia-t4", "nan", "zh", "ok    精度已生效: float16 x 32, float32 x 7"),
        ("ddp", "tabular", "nvidia-a100", "none", "en", "ok    precision active: bfloat16 x 20, float32 x 3"),
        ("fsdp2", "image", "nvidia-a100", "oom", "en", "ok    precision active: bfloat16 x 50, float32 x 3"),
    ],
)
def test_its_own_test_passes(
    tmp_path: Path, parallel: str, task: str, device: str, trouble: str, language: str, said: str
) -> None:
    project = write(
        tmp_path / "project",
        framework="flax",
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


@pytest.mark.parametrize(("parallel", "task"), [("single", "image"), ("fsdp2", "tabular")])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, parallel: str, task: str) -> None:
    project = write(tmp_path / "project", framework="flax", device="t4", parallel=parallel, task=task, size="tiny")
    whole = report_of(project, *SMALL, "--steps", "6", "--out", "whole")
    report_of(project, *SMALL, "--steps", "4", "--out", "parts")
    rest = report_of(project, *SMALL, "--steps", "6", "--out", "parts", "--resume")
    assert (rest["first_step"], rest["last_step"]) == (5, 6)
    assert rest["losses"] == whole["losses"][4:]
    assert rest["evaluation"] == whole["evaluation"]
    other = ("train.py", "--micro-batch", "4", "--accumulate", "1", "--steps", "6", "--out", "parts", "--resume")
    assert "saved with another --accumulate" in run_python(project, *other, code=2)
    assert "no checkpoint to resume from" in run_python(project, *SMALL, "--out", "none", "--resume", code=2)


def test_several_devices_train_what_one_does(tmp_path: Path) -> None:
    reports = {}
    for parallel in ("single", "ddp", "fsdp2"):
        project = write(tmp_path / parallel, framework="flax", device="p100", parallel=parallel, size="tiny")
        batch = "16" if parallel == "single" else "8"
        reports[parallel] = report_of(project, "train.py", "--steps", "3", "--micro-batch", batch, "--accumulate", "1")
    # Norms see the whole batch: only the order of sums differs.
    for parallel in ("ddp", "fsdp2"):
        assert reports[parallel]["world_size"] == 2
        assert reports[parallel]["losses"] == pytest.approx(reports["single"]["losses"], rel=1e-3)
        assert set(reports[parallel]["dtypes"]["reductions"]) == {"float32"}
    assert reports["single"]["dtypes"]["reductions"] == {}


SHARES = """
import jax, step
from data import load
jax.set_mesh(step.make_mesh(2))
_, state = step.new_state(load(), True, 0, step.new_optimizer(1e-3, 1))
arrays = [leaf for leaf in jax.tree.leaves((state.params, state.optimizer)) if leaf.ndim]
held = sum(leaf.addressable_shards[0].data.size for leaf in arrays)
print("share", held / sum(leaf.size for leaf in arrays))
"""


@pytest.mark.parametrize(("parallel", "share"), [("ddp", 1.0), ("fsdp2", 0.5)])
def test_fsdp2_divides_weights_and_optimizer_states(tmp_path: Path, parallel: str, share: float) -> None:
    project = write(tmp_path / "project", framework="flax", device="a100", parallel=parallel, task="text", size="tiny")
    printed = run_python(project, "-c", SHARES)
    assert float(printed.partition("share ")[2].split()[0]) == pytest.approx(share, abs=0.01)


def test_check_says_that_a_cpu_gains_nothing(tmp_path: Path) -> None:
    project = write(tmp_path / "project", framework="flax", device="a100", task="text", size="tiny")
    printed = run_python(project, "check.py")
    assert "The precision is active: modules compute in bfloat16." in printed
    assert "float32 x 29" in printed
    printed = run_python(project, "train.py", "--steps", "1")
    assert "products asked for in bfloat16 x 32, float32 x 7; XLA computes them here in" in printed


def test_find_nan_names_the_module(tmp_path: Path) -> None:
    project = write(
        tmp_path / "project", framework="flax", device="t4", task="text", size="tiny", trouble="oom", language="en"
    )
    text = (project / "model.py").read_text()
    (project / "model.py").write_text(text.replace("return self.out(mixed", "return 1e9 * self.out(mixed"))
    assert "--find-nan names the module where it begins" in run_python(project, *SMALL, "--steps", "2", code=1)
    printed = run_python(project, *SMALL, "--steps", "2", "--find-nan", code=1)
    assert "FloatingPointError: blocks.0.attention (Attention): NaN or infinity in its float16 output" in printed


def test_it_stops_when_gradients_overflow_at_the_smallest_scale(tmp_path: Path) -> None:
    project = write(tmp_path / "project", framework="flax", device="t4", task="tabular", size="tiny", language="en")
    text = (project / "model.py").read_text()
    (project / "model.py").write_text(text.replace("return x + self.down(", f"return x + {NAN_GRADIENT} + self.down("))
    text = (project / "precision.py").read_text()
    (project / "precision.py").write_text(text.replace("scale=65536.0", "scale=4.0"))
    printed = run_python(project, *SMALL, "--accumulate", "1", "--steps", "40", code=1)
    assert "step 10  loss" in printed
    assert "step 30" not in printed
    assert "the loss scale is at its floor and gradients still overflow: no scale helps" in printed
