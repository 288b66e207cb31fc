# SPDX-License-Identifier: Apache-2.0
"""The scripts that users write (tests/scripts), rehearsed: every kind of loop gives a trial and a recorded step."""

from __future__ import annotations

import math
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tap.running import run_here
from typing_extensions import override

from floatwise.plan import LossScale, Plan, dumps_plan, recipe
from floatwise.rehearse.child import RehearsalChild
from floatwise.rehearse.memory_prediction import peak_memory
from floatwise.rehearse.trial import Trial
from floatwise.tap.core import Tap
from floatwise.tap.job import Job

SCRIPTS = Path(__file__).parents[1] / "scripts"
#: What only another script uses, what starts processes, and what needs more than a script alone.
APART = {"argparse_script.py", "config_small.py", "deepspeed_config.py", "mp_spawn.py", "torchrun_ddp.py"}
REHEARSED = sorted(path.name for path in SCRIPTS.glob("*.py") if path.name not in APART)
#: Computes without modules: there is no model whose gradients or memory could be told from other tensors.
WITHOUT_MODULES = {"functional_tensors.py"}
STEPS = 3


class _Here(RehearsalChild):
    @override
    def open_tap(self) -> Tap:
        self.tap = super().open_tap()
        return self.tap


def rehearsed(script: str, plan: Plan, folder: Path) -> Trial:
    for name in ("relative_data.txt", "config_small.py", script):
        shutil.copy(SCRIPTS / name, folder)
    output = folder / "trial"
    options: dict[str, Any] = {"plan": dumps_plan(plan), "known": [], "permuted": None, "record": True}
    ran = run_here(_Here(Job(script, (), STEPS, output=str(output), options=options)), folder)
    assert ran.failure == ""
    trial: Trial = pickle.loads(output.read_bytes())
    return trial


@pytest.mark.slow
@pytest.mark.parametrize("script", REHEARSED)
def test_every_script_gives_a_trial_and_a_recorded_step(script: str, tmp_path: Path) -> None:
    plan = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=8.0))  # no first batch overflows
    trial = rehearsed(script, plan, tmp_path)
    assert trial.trained is not None
    assert all(map(math.isfinite, trial.trained.losses))
    assert bool(trial.start.gradients) == (script not in WITHOUT_MODULES)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in trial.start.gradients.values())
    record = trial.step_record
    if script in WITHOUT_MODULES:
        assert record is None
        return
    assert record is not None
    assert any(operator.matrix for operator in record.operators)
    assert peak_memory(record.memory, plan).peak_bytes > 0
