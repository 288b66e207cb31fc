# SPDX-License-Identifier: Apache-2.0
"""A run that is killed and resumed gives the bits of one that was not."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.loop_parts import same
from tests.torch.resume_run import KILLED_IN, LAST, PLANS, SAVED_AFTER, Run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a killed process left behind."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch.resume_run", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    checkpoint: dict[str, Any] = torch.load(folder / "checkpoint.pt")
    return checkpoint


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((name, "loaded after prepare") for name in PLANS),
        # Before it nothing takes the step number, from which stochastic rounding draws.
        *((name, "loaded before prepare") for name in PLANS if "stochastic" not in name),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(name: str, order: str, saved: dict[str, Any]) -> None:
    unbroken = Run(PLANS[name])
    losses = [unbroken.step() for _ in range(LAST)]
    expected = unbroken.values()
    unbroken.precision.close()
    # A copy: torch's optimizers go on in the very tensors they load.
    resumed = Run(PLANS[name], copy.deepcopy(saved[name]), first_load="before" in order)
    assert resumed.step_number == SAVED_AFTER < KILLED_IN
    assert [resumed.step() for _ in range(LAST - SAVED_AFTER)] == losses[SAVED_AFTER:]
    assert same(resumed.values(), expected)
    assert resumed.infos == unbroken.infos[SAVED_AFTER:]
    resumed.precision.close()
    if name.startswith("fp16"):
        assert unbroken.infos[0].skipped  # before the checkpoint
        assert len({info.loss_scale for info in resumed.infos}) > 1  # and the scale moves after it


@pytest.mark.parametrize("name", PLANS)
def test_the_model_of_a_checkpoint_is_a_plain_float32_one(name: str, saved: dict[str, Any]) -> None:
    plain = Run(PLANS["fp32"])
    plain.model.load_state_dict(saved[name]["model"])
    assert {t.dtype for t in saved[name]["model"].values() if t.is_floating_point()} == {torch.float32}
    plain.precision.close()
