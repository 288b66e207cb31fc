# SPDX-License-Identifier: Apache-2.0
"""Updates under half a step of a bfloat16 weight: lost by the weight alone, kept by every kind of master."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.cases.parts import Transformer, language_training
from tests.rehearse.failures.running import with_masters
from torch import Tensor, nn

from floatwise.errors import PlanError
from floatwise.plan import Plan, recipe
from floatwise.plan.recipe_table import Master
from floatwise.probe.updates import UpdateProbe
from floatwise.rehearse.baseline import Baseline, measure_baseline
from floatwise.rehearse.islands import judge_by_rehearsal
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.training import Training
from floatwise.stats.torch import SummaryCollector
from floatwise.torch import prepare

# -- the gains of a small GPT, with Adam ------------------------------------------------------------------------

STEPS = 200


def gpt() -> Training:
    return language_training(Transformer(), lr=1e-3)


class Moved(NamedTuple):
    """Share of the weights that are not what they were, and the last loss."""

    gains: float
    queries: float
    loss: float


def moved(training: Training, before: dict[str, Tensor], loss: Tensor) -> Moved:
    changed = {name: p.detach() != before[name] for name, p in training.model.named_parameters()}
    gains = torch.cat([c for name, c in changed.items() if "norm" in name and name.endswith("weight")])
    queries = torch.cat([c for name, c in changed.items() if name.endswith("q.weight")])
    return Moved(float(gains.float().mean()), float(queries.float().mean()), loss.item())


def stored(training: Training) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}


def trained_plainly(dtype: torch.dtype) -> Moved:
    training = gpt()
    training.model.to(dtype)
    before = stored(training)
    with MatrixUnits([torch.bfloat16]):
        for step in range(STEPS):
            training.optimizer.zero_grad()
            loss = training.loss(step)
            loss.backward()
            training.optimizer.step()
    return moved(training, before, loss)


def trained_under(plan: Plan) -> Moved:
    training = gpt()
    with MatrixUnits([torch.bfloat16]):
        precision = prepare(training.model, training.optimizer, plan)
        before = stored(training)
        for step in range(STEPS):
            precision.zero_grad()
            with precision.forward():
                loss = training.loss(step)
            precision.backward(loss)
            precision.step()
        result = moved(training, before, loss)
        precision.close()
    return result


def test_gains_in_bfloat16_do_not_move_and_the_loss_looks_plausible() -> None:
    plain, exact = trained_plainly(torch.bfloat16), trained_plainly(torch.float32)
    assert (plain.gains, exact.gains) == (0.0, 1.0)
    assert plain.queries > 0.99
    assert plain.loss < 2.0  # it began at log 64 = 4.2


@pytest.mark.parametrize(("master", "gains"), [("split", 1.0), ("kahan", 0.978), ("stochastic", 0.978)])
def test_with_masters_the_gains_move(master: Master, gains: float) -> None:
    result = trained_under(with_masters(master))
    assert result.gains == pytest.approx(gains, abs=0.025)
    assert result.queries > 0.99


def test_float32_tells_beforehand_which_updates_bfloat16_will_lose() -> None:
    training, probe = gpt(), UpdateProbe(SummaryCollector())
    for step in range(20):
        training.optimizer.zero_grad()
        training.loss(step).backward()
        probe.before(list(training.model.named_parameters()))
        training.optimizer.step()
        probe.after()
    stalls = {stall.parameter: stall.lost["bfloat16"] / stall.moved for stall in probe.stalls()}
    gains = [share for name, share in stalls.items() if "norm" in name and name.endswith("weight")]
    assert min(gains) > 0.95
    assert stalls["blocks.0.attention.q.weight"] < 0.3


def test_bfloat16_weights_without_masters_are_no_plan() -> None:
    with pytest.raises(PlanError, match="half an ulp"):
        with_masters("none")


@pytest.fixture(scope="module")
def baseline() -> Baseline:
    return measure_baseline(gpt, 6)


@pytest.mark.parametrize(
    "plan", [recipe("bf16-master"), with_masters("kahan"), with_masters("stochastic"), recipe("bf16-mixed")]
)
def test_plans_that_keep_updates_are_accepted(plan: Plan, baseline: Baseline) -> None:
    verdict = judge_by_rehearsal(gpt, plan, 6, baseline=baseline)
    assert verdict.status == "accept"
    assert max(row.stalled_share for row in verdict.first.gradients) < 0.05


# -- Zamirai et al. 2020, section 3: least squares with weights in [0, 100) -------------------------------------

SIZE, TARGETS = 10, 64
#: A run that learns has settled after a thousand steps; one that stalls creeps on, as in the facts, for 20,000.
SETTLED, CREEPING = 1500, 20_000


class LeastSquares:
    """Many problems at once, a target each; the facts' figures are those of one target."""

    def __init__(self, steps: int) -> None:
        self.model = nn.Linear(SIZE, TARGETS, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.true = torch.rand(TARGETS, SIZE) * 100
        self.inputs = torch.randn(steps, 1, SIZE)
        self.wanted = self.inputs @ self.true.T + 0.5 * torch.randn(steps, 1, TARGETS)
        self.excess = torch.zeros(steps)

    def note(self, step: int) -> None:
        error = self.inputs[step] @ (self.model.weight.detach().float() - self.true).T
        self.excess[step] = error.square().mean()

    @property
    def last_excess(self) -> float:
        return float(self.excess[-len(self.excess) // 4 :].mean())


def least_squares(plan: Plan) -> float:
    run = LeastSquares(SETTLED)
    with MatrixUnits([torch.bfloat16]):
        precision = prepare(run.model, run.optimizer, plan)
        for step in range(SETTLED):
            precision.zero_grad()
            with precision.forward():
                loss = (run.model(run.inputs[step]) - run.wanted[step]).square().sum() / 2
            precision.backward(loss)
            precision.step()
            run.note(step)
        precision.close()
    return run.last_excess


@pytest.mark.parametrize(
    ("plan", "excess"),
    [
        (recipe("fp32"), 0.012),
        (recipe("bf16-mixed"), 0.044),
        (with_masters("kahan"), 0.18),
        (with_masters("stochastic"), 0.73),
    ],
    ids=["float32", "products", "kahan", "stochastic"],
)
def test_rounding_of_products_does_little(plan: Plan, excess: float) -> None:
    assert least_squares(plan) == pytest.approx(excess, rel=0.7)


def test_rounding_of_updates_alone_stalls() -> None:
    run = LeastSquares(CREEPING)
    run.model.bfloat16()
    for step in range(CREEPING):
        run.optimizer.zero_grad()
        output = F.linear(run.inputs[step], run.model.weight.float())
        ((output - run.wanted[step]).square().sum() / 2).backward()
        run.optimizer.step()
        run.note(step)
    assert run.last_excess == pytest.approx(2.06, rel=0.3)
