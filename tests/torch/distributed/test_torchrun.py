# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.torch.distributed.torchrun_script import BAD_STEP, MODELS, STEPS

from floatwise.plan import LossScale, Plan, recipe, save_plan

SCRIPT = Path(__file__).with_name("torchrun_script.py")
# Far more than it needs; a busy machine must not make a test fail.
SECONDS = 300


@dataclass
class Run:
    """What a start of two processes came to."""

    exit_code: int
    said: str
    ranks: list[dict[str, Any]]


def torchrun(plan: Plan, folder: Path, mode: str) -> Run:
    """Starts the script on two ranks under the plan; ends all of its processes if it does not end by itself."""
    save_plan(plan, folder / "precision.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "floatwise", "run", str(SCRIPT), "--plan", "precision.toml", "--", str(folder), mode]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert len(ranks) == 2, said
    return Run(process.returncode, said, ranks)


@pytest.fixture(scope="module")
def skips(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Under float16, with a batch on one rank that overflows."""
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=1024.0))
    return torchrun(plan, tmp_path_factory.mktemp("skips"), "overflow")


@pytest.fixture(scope="module")
def fails(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Under bfloat16; at the end one rank raises while the other waits for it."""
    return torchrun(recipe("bf16-mixed"), tmp_path_factory.mktemp("fails"), "fails")


@pytest.mark.parametrize("kind", MODELS)
class TestTraining:
    def test_ranks_skip_together_when_one_overflows(self, kind: str, skips: Run) -> None:
        expected = [step != BAD_STEP for step in range(STEPS)]
        assert [rank[kind]["moved"] for rank in skips.ranks] == [expected, expected]

    def test_ranks_end_with_the_same_weights(self, kind: str, skips: Run, fails: Run) -> None:
        for run in (skips, fails):
            assert run.ranks[0][kind]["weights"] == run.ranks[1][kind]["weights"]


@pytest.mark.parametrize("weights", ["", ", 16-bit weights"])
def test_shards_train_as_ddp_does_bit_for_bit(weights: str, fails: Run) -> None:
    assert fails.ranks[0][f"fsdp2{weights}"]["weights"] == fails.ranks[0][f"ddp{weights}"]["weights"]


def test_the_first_rank_speaks_for_all(skips: Run, fails: Run) -> None:
    steps, bad = STEPS * len(MODELS), len(MODELS)
    told = f"floatwise: fp16-mixed: {steps} optimizer steps, {bad} skipped, loss scale now {1024 / 2**bad:g}"
    assert skips.said.count(told) == 1
    assert skips.said.count("matrix unit") <= 1
    for run in (skips, fails):
        assert run.said.count("fully_shard(mp_policy=MixedPrecisionPolicy(param_dtype=bfloat16)) is replaced") == 1


def test_a_run_that_ends_well_has_exit_code_zero(skips: Run) -> None:
    assert skips.exit_code == 0, skips.said


def test_a_rank_that_fails_ends_all_with_its_error(fails: Run) -> None:
    assert fails.exit_code != 0
    assert "the script failed with RuntimeError: the data of rank 1 is broken" in fails.said
    for rank in fails.ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank["process"], 0)
