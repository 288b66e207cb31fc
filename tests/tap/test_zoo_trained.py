# SPDX-License-Identifier: Apache-2.0
"""The scripts that users write (tests/scripts), trained under plans by the command, each to its own end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"

#: What only another script uses, what never ends, and what needs more than a script alone: these have their own tests.
APART = {
    "argparse_script.py",
    "config_small.py",
    "deepspeed_config.py",
    "exec_config.py",
    "infinite_loop.py",
    "mp_spawn.py",
    "torchrun_ddp.py",
}
#: Scripts that mix weights with float32 tensors by hand, and so meet two formats where the plan stores 16 bits.
MIXED_BY_HAND = {"custom_autograd_function.py"}

TRAINED = sorted(path.name for path in SCRIPTS.glob("*.py") if path.name not in APART)
#: One of each kind of loop and model; all others are `make thorough`, which takes minutes for them.
CORE = {
    "accumulation.py",
    "batchnorm_cnn.py",
    "class_trainer.py",
    "compiled.py",
    "custom_autograd_function.py",
    "dataloader_workers.py",
    "functional_tensors.py",
    "gan.py",
    "grad_penalty.py",
    "hf_trainer.py",
    "lbfgs.py",
    "lightning_trainer.py",
    "manual_sgd.py",
    "plain_loop.py",
    "tied_weights.py",
    "uses_half_weights.py",
}


def run(script: str, recipe: str, folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(SCRIPTS / "relative_data.txt", folder)
    command = [sys.executable, "-m", "floatwise", "run", str(SCRIPTS / script), "--recipe", recipe]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLOATWISE_LANG": "en"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=() if name in CORE else pytest.mark.thorough) for name in TRAINED]
)
def test_with_16_bit_weights(script: str, tmp_path: Path) -> None:
    done = run(script, "bf16-master", tmp_path)
    if script in MIXED_BY_HAND:
        assert done.returncode == 2
        assert "a tensor in 16 bits met one in another format" in done.stderr
        done = run(script, "bf16-mixed", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = re.search(r"floatwise: bf16-\w+: (\d+) optimizer steps", done.stderr)
    assert steps is not None
    assert int(steps.group(1)) > 0
    assert "not finite" not in done.stderr
