# SPDX-License-Identifier: Apache-2.0
"""Gradients below float16's smallest number: training stalls without a loss scale, and with one it does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.failures.running import MIXED, UNSCALED, matrix_units, reasons
from torch import Tensor, nn

from floatwise.plan import LossScale, Plan, recipe
from floatwise.rehearse.islands import judge_by_rehearsal
from floatwise.rehearse.training import Training
from floatwise.rehearse.trial import train
from floatwise.stats import summarise, underflow_share

SCALED = recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**13))
ROWS, OUTPUTS = 1024, 128  # 2^17 outputs: a mean over them makes small gradients
LOSS_WEIGHT = 1 / 8


def student(distance: float) -> Training:
    """A student of a teacher whose weights are so far away; all its errors become small."""
    teacher, model = (nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, OUTPUTS)) for _ in range(2))
    model.load_state_dict(teacher.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * distance)
        x = torch.randn(ROWS, 32)
        y = teacher(x)

    def loss(step: int) -> Tensor:
        return F.mse_loss(model(x).float(), y) * LOSS_WEIGHT

    return Training(model, torch.optim.SGD(model.parameters(), lr=200.0, momentum=0.9), loss)


beginning = partial(student, 0.03)
late = partial(student, 0.001)


@pytest.mark.parametrize(
    ("plan", "final"),
    [(recipe("fp32"), 4.2e-8), (UNSCALED, 6.9e-5), (SCALED, 6.8e-8), (MIXED["bfloat16"], 1.8e-6)],
    ids=["float32", "float16", "float16_scaled", "bfloat16"],
)
def test_float16_without_a_loss_scale_stalls_a_thousand_times_higher(plan: Plan, final: float) -> None:
    losses = train(beginning, plan, steps=500, seed=0).losses
    assert losses[0] / LOSS_WEIGHT == pytest.approx(0.0198, rel=0.01)
    assert losses[-1] / LOSS_WEIGHT == pytest.approx(final, rel=0.25)


def output_gradient(training: Training, dtype: torch.dtype = torch.float32) -> Tensor:
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        output.register_hook(seen.append)

    training.model.register_forward_hook(keep)
    if dtype is torch.float32:
        training.loss(0).backward()
    else:
        with matrix_units(dtype):
            loss = training.loss(0)
        loss.backward()
    return seen[0]


@pytest.mark.parametrize(("make", "share"), [(beginning, 0.090), (late, 0.98)], ids=["beginning", "late"])
def test_the_share_that_vanishes_is_the_one_that_float32_predicts(make: Callable[[], Training], share: float) -> None:
    torch.manual_seed(0)
    exact = output_gradient(make())
    predicted = underflow_share(summarise(exact.numpy()), "float16")
    torch.manual_seed(0)
    real = output_gradient(make(), torch.float16)
    assert predicted == pytest.approx(share, abs=0.02)
    assert float((real == 0).float().mean()) == pytest.approx(predicted, abs=0.005)
    assert underflow_share(summarise(exact.numpy()), "float16", scale_log2=13) < 1e-3


def test_late_in_training_float16_is_refused_without_a_loss_scale_and_accepted_with_it() -> None:
    without = judge_by_rehearsal(late, UNSCALED, 6)
    assert without.status == "refuse"
    assert {"gradients_wrong", "gradients_vanish"} <= set(reasons(without))
    assert [advice.code for advice in without.advice] == ["raise_loss_scale"]
    assert without.tried == (), "no island would help"
    assert max(row.zero_share for row in without.first.gradients) > 0.9
    assert all(row.float32_zero_share == 0.0 for row in without.first.gradients)
    assert judge_by_rehearsal(late, SCALED, 6).status == "accept"


@pytest.mark.parametrize("fmt", MIXED)
def test_the_recipes_are_accepted(fmt: str) -> None:
    verdict = judge_by_rehearsal(beginning, MIXED[fmt], 6)
    assert (verdict.status, reasons(verdict)) == ("accept", [])
