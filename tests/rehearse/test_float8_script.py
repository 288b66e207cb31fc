# SPDX-License-Identifier: Apache-2.0
"""float8 plans for training code that knows nothing of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.cases.planted import HEALTHY
from torch import nn

from floatwise.plan import ModulePolicy, Plan, Policy, dumps_plan, loads_plan, recipe
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_script import Float8Script, without_float8
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.script_recorder import ScriptRecorder
from floatwise.rehearse.trial import rehearse
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch import prepare
from floatwise.torch.script.applied import AppliedPlan

PLAN = recipe("fp8-rowwise")


@contextmanager
def under(plan: Plan) -> Iterator[Float8Script]:
    applied, float8 = AppliedPlan(without_float8(plan)), Float8Script(plan)
    with Tap([float8, applied]) as tap:
        existing = ExistingPrecision(tap, compute_dtype=applied.compute_dtype)
        existing.install()
        applied.install(tap, existing)
        float8.install(tap)
        yield float8


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Linear(32, 10))


def train(model: nn.Module) -> list[float]:
    """A float32 training loop."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(32, 32, generator=generator)), torch.arange(32) % 10)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_by_hand(model: nn.Module, plan: Plan) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    generator = torch.Generator().manual_seed(1)
    precision = prepare(model, optimizer, without_float8(plan))
    with Float8Linears(model, plan):
        for _ in range(4):
            precision.zero_grad()
            with precision.forward():
                output = model(torch.randn(32, 32, generator=generator))
            loss = F.cross_entropy(output.float(), torch.arange(32) % 10)
            precision.backward(loss)
            precision.step()
            losses.append(loss.item())
    precision.close()
    return losses


@pytest.mark.parametrize("name", ["fp8-tensorwise", "fp8-rowwise"])
def test_a_script_trains_as_a_loop_of_ones_own_under_the_plan(name: str) -> None:
    by_hand, script = make_model(), make_model()
    expected = train_by_hand(by_hand, recipe(name))
    with under(recipe(name)) as float8:
        assert train(script) == expected
    assert [part.converted for part in float8.parts] == [("0", "2")]
    assert [(o.path, o.code) for o in float8.parts[0].left_out] == [("3", "dimensions")]
    for a, b in zip(by_hand.parameters(), script.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_script_finds_its_model_as_it_left_it() -> None:
    model = make_model()
    expected = train(make_model())
    with under(PLAN):
        assert train(make_model()) != expected
        model(torch.randn(2, 32))
    assert not any("forward" in vars(module) for module in model.modules())
    assert train(model) == expected


def test_a_model_that_runs_in_parts_and_as_a_whole_is_converted_once() -> None:
    model = make_model()
    with under(PLAN) as float8:
        model[0](torch.randn(2, 32))
        model(torch.randn(2, 32))
        model(torch.randn(2, 32))
    assert [part.converted for part in float8.parts] == [("0",), ("2",)]
    assert float8.parts[0].counts()["0", "input"].casts == 3


def test_islands_of_the_plan_hold_in_scripts() -> None:
    island = ModulePolicy(module="2", policy=Policy(compute_dtype="float32"))
    with under(PLAN.model_copy(update={"modules": (island,)})) as float8:
        train(make_model())
    assert float8.parts[0].converted == ("0",)


def test_all_but_the_products_is_a_plan_of_its_own() -> None:
    island = ModulePolicy(module="2", policy=Policy(compute_dtype="float32"))
    beside = without_float8(PLAN.model_copy(update={"modules": (island,)}))
    assert loads_plan(dumps_plan(beside)) == beside
    assert (beside.recipe, beside.compute_dtype, beside.scaling) == ("bf16-mixed", "bfloat16", None)
    assert beside.modules == (island,)
    assert without_float8(beside) is beside


@pytest.mark.parametrize("name", ["fp8-tensorwise", "fp8-rowwise"])
def test_a_script_gives_the_evidence_that_a_function_gives(name: str) -> None:
    plan, make = recipe(name), HEALTHY["gpt"].make
    applied, float8 = AppliedPlan(without_float8(plan)), Float8Script(plan)
    tap = Tap([applied, float8])
    recorder = ScriptRecorder(plan, tap.paths.of, float8=float8)
    tap.observers = (applied, float8, recorder)
    with tap:
        applied.install(tap, ExistingPrecision(tap, compute_dtype=applied.compute_dtype))
        float8.install(tap)
        torch.manual_seed(0)
        training = make()
        with MatrixUnits([torch.bfloat16]), CudaSpecials(), recorder.watch:
            for step in range(3):
                training.optimizer.zero_grad()
                loss = training.loss(step)
                loss.backward()
                training.optimizer.step()
                recorder.iteration_ended(step, loss.item())
    script, function = recorder.trial(), rehearse(make, plan, 3)
    assert script is not None
    assert script.trained is not None
    assert function.trained is not None
    assert script.trained.losses == pytest.approx(function.trained.losses, rel=1e-3)
    assert script.start.float8 is not None
    assert function.start.float8 is not None
    assert script.start.float8.converted == function.start.float8.converted
    assert script.start.float8.counts.keys() == function.start.float8.counts.keys()
    assert list(script.start.gradients) == list(function.start.gradients)
    for parameter, gradient in function.start.gradients.items():
        torch.testing.assert_close(script.start.gradients[parameter], gradient, rtol=0.2, atol=0.02)
    assert pickle.loads(pickle.dumps(script)).start.float8 == script.start.float8
