# SPDX-License-Identifier: Apache-2.0
"""A script that knows nothing of it gives the evidence that `rehearse` gives, and its search the same island."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rehearse.cases.planted import HEALTHY, PLANTED

from floatwise.plan import Plan, dumps_plan, loads_plan, recipe
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.script_recorder import ScriptRecorder
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.trial import Trial, rehearse
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.job import Job
from floatwise.tap.launch import Child
from floatwise.torch.script.applied import AppliedPlan

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import torch
from tests.rehearse.cases.planted import HEALTHY, PLANTED

torch.manual_seed(0)
training = {{**PLANTED, **HEALTHY}}[sys.argv[1]].make()
for step in range(20):
    training.optimizer.zero_grad()
    loss = training.loss(step)
    loss.backward()
    training.optimizer.step()
"""


def recorded(make: MakeTraining, plan: Plan, steps: int) -> Trial:
    """Trains in a loop of its own, as a script would, under a tap."""
    applied = AppliedPlan(plan)
    tap = Tap([applied])
    recorder = ScriptRecorder(plan, tap.paths.of, applied.scaling, survey=plan.is_float32)
    tap.observers = (applied, recorder)
    with tap:
        applied.install(tap, ExistingPrecision(tap, compute_dtype=applied.compute_dtype))
        torch.manual_seed(0)
        training = make()
        with MatrixUnits(), recorder.watch:
            for step in range(steps):
                training.optimizer.zero_grad()
                loss = training.loss(step)
                loss.backward()
                training.optimizer.step()
                recorder.iteration_ended(step, float(loss.detach()))
    trial = recorder.trial()
    assert trial is not None
    return trial


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_a_script_gives_the_evidence_that_a_function_gives(name: str) -> None:
    make, plan = HEALTHY["gpt"].make, recipe(name)
    script, function = recorded(make, plan, 5), rehearse(make, plan, 5)
    assert script.trained is not None
    assert function.trained is not None
    assert script.trained.losses == pytest.approx(function.trained.losses, rel=1e-3)
    assert list(script.start.gradients) == list(function.start.gradients)
    for parameter, gradient in function.start.gradients.items():
        torch.testing.assert_close(script.start.gradients[parameter], gradient, rtol=0.05, atol=0.01)
    assert script.start.flops == function.start.flops
    assert list(script.start.calls) == list(function.start.calls)
    assert script.trained.skipped_steps == 0


def test_a_script_that_overflows_names_the_same_operator() -> None:
    case = PLANTED["gated_ffn"]
    script, function = recorded(case.make, recipe("fp16-mixed"), 2), rehearse(case.make, recipe("fp16-mixed"), 2)
    assert script.first_nonfinite is not None
    assert function.first_nonfinite is not None
    assert script.first_nonfinite.site == function.first_nonfinite.site
    assert script.trained is None


@pytest.mark.slow
def test_judges_an_unmodified_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[2])), encoding="utf-8")
    options = {"plans": [dumps_plan(recipe("fp16-mixed")), dumps_plan(recipe("bf16-mixed"))]}
    job = Job(str(script), ("gated_ffn",), 4, options=options)
    with Child("floatwise.rehearse.judge_child", job, "rehearsing") as child:
        told = [message for message in child.messages() if message["event"] == "verdict"]
    assert [message["verdict"]["status"] for message in told] == ["accept_with_islands", "accept"]
    assert [entry.module for entry in loads_plan(told[0]["plan"]).modules] == ["blocks.1.ffn.wo"]


ENDS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(8):
    optimizer.zero_grad()
    (model(torch.randn(8, 64)) * 0.0).sum().backward()  # a micro-batch that is masked altogether
    scale = 1e6 if step > 2 else 1.0
    output = model(torch.randn(8, 64) * scale)
    if not output.isfinite().all():
        raise SystemExit("not finite: stopping")
    (output / scale).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_stops_at_a_bad_value_is_not_taken_for_one_that_trained(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ENDS, encoding="utf-8")
    job = Job(str(script), (), 6, options={"plans": [dumps_plan(recipe("fp16-mixed"))]})
    with Child("floatwise.rehearse.judge_child", job, "rehearsing") as child:
        (told,) = [message for message in child.messages() if message["event"] == "verdict"]
    verdict = told["verdict"]
    assert verdict["without_islands"]["problems"][0]["code"] == "ended_early"
    assert verdict["without_islands"]["problems"][0]["data"] == {"steps": 3, "float32_steps": 6}
    assert verdict["without_islands"]["gradients"], "those of the second backward pass: the first has none"


FORKS = """
import os, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(8):
    if step == 2 and os.fork() == 0:
        sys.exit(0)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_process_that_the_script_forks_does_not_end_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FORKS, encoding="utf-8")
    output = tmp_path / "trial"
    options: dict[str, Any] = {"plan": dumps_plan(recipe("fp32")), "known": [], "permuted": None}
    job = Job(str(script), (), 6, output=str(output), options=options)
    with Child("floatwise.rehearse.child", job, "rehearsing") as child:
        steps = [message["index"] for message in child.messages() if message["event"] == "step"]
    assert steps == list(range(6))
