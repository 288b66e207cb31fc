# SPDX-License-Identifier: Apache-2.0
"""Sums that stop growing in 16 bits: Adam's second moment, averaged weights, accumulated gradients."""

from __future__ import annotations

import pytest
import torch
from tests.rehearse.failures.running import with_masters
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from floatwise.plan import LossScale, Plan, recipe
from floatwise.torch import MasterWeights, WeightAverage, prepare

# -- Adam's second moment ---------------------------------------------------------------------------------------

DECAYING_STEPS = 3000  # at a beta of 0.999 to a twentieth


def second_moment_left(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> float:
    """Returns what steps without a gradient leave of the second moment."""
    weight.grad = torch.rand(weight.shape).to(weight.dtype) + 1
    optimizer.step()
    first = optimizer.state[weight]["exp_avg_sq"].float().clone()
    weight.grad = torch.zeros_like(weight)
    for _ in range(DECAYING_STEPS):
        optimizer.step()
    return float((optimizer.state[weight]["exp_avg_sq"].float() / first).mean())


@pytest.mark.parametrize(("dtype", "left"), [(torch.float32, 0.050), (torch.bfloat16, 1.000), (torch.float16, 0.062)])
def test_the_second_moment_stays_as_it_is_in_bfloat16(dtype: torch.dtype, left: float) -> None:
    weight = nn.Parameter(torch.randn(1000).to(dtype))
    optimizer = torch.optim.Adam([weight], lr=1e-5, eps=1e-3)  # an epsilon that float16 holds
    assert second_moment_left(optimizer, weight) == pytest.approx(left, rel=0.05)


def test_with_master_weights_the_second_moment_is_float32() -> None:
    weight = nn.Parameter(torch.randn(1000).bfloat16())
    optimizer = MasterWeights(torch.optim.Adam([weight], lr=1e-5))
    assert second_moment_left(optimizer, weight) == pytest.approx(0.999**DECAYING_STEPS, rel=1e-3)


# -- averaged weights -------------------------------------------------------------------------------------------

DECAY, UPDATES = 0.9999, 2000


def model_at(dtype: torch.dtype) -> nn.Linear:
    model = nn.Linear(100, 100, bias=False, dtype=dtype)
    nn.init.constant_(model.weight, 0.04)
    return model


def go_on(model: nn.Linear) -> None:
    with torch.no_grad():
        model.weight.copy_(torch.randn(100, 100) * 0.02 + 0.05)


@pytest.mark.parametrize(("dtype", "missing"), [(torch.bfloat16, 0.18), (torch.float16, 0.18), (torch.float32, 0.0)])
def test_an_average_in_16_bits_never_moves(dtype: torch.dtype, missing: float) -> None:
    model = model_at(dtype)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    average.update_parameters(model)  # the first only copies
    start, averaged = model.weight.detach().clone(), next(average.parameters()).detach()
    go_on(model)
    for _ in range(UPDATES):
        average.update_parameters(model)
    way = model.weight.detach().float() - start.float()
    lost = start.float() + way * (1 - DECAY**UPDATES) - averaged.float()
    assert float(lost.abs().mean() / way.abs().mean()) == pytest.approx(missing, abs=0.005)
    assert torch.equal(averaged, start) is (dtype is not torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_average_moves_all_of_the_way_that_is_due(dtype: torch.dtype) -> None:
    model = model_at(dtype)
    start = model.weight.detach().float().clone()
    average = WeightAverage(model, DECAY)
    go_on(model)
    for _ in range(UPDATES):
        average.update()
    due = start + (model.weight.detach().float() - start) * (1 - DECAY**UPDATES)
    torch.testing.assert_close(average.model_state_dict()["weight"], due, rtol=1e-4, atol=1e-6)


# -- accumulated gradients --------------------------------------------------------------------------------------

MICRO_BATCHES = 4096
#: Of an output that is the sum of its inputs times weights the gradient is the inputs: half of them 1, half about 0.05.
ONES = 32


def micro_batches(dtype: torch.dtype) -> torch.Tensor:
    small = torch.randn(MICRO_BATCHES, 1, 64 - ONES) * 0.02 + 0.05
    return torch.cat([torch.ones(MICRO_BATCHES, 1, ONES), small], -1).to(dtype)


@pytest.mark.parametrize(("dtype", "ones", "small"), [(torch.bfloat16, 256, 32), (torch.float16, 2048, 181)])
def test_gradients_that_add_up_in_16_bits_stop_growing(dtype: torch.dtype, ones: float, small: float) -> None:
    model = nn.Linear(64, 1, bias=False, dtype=dtype)
    for inputs in micro_batches(dtype):
        model(inputs).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad[0, :ONES].tolist() == [ones] * ONES
    assert float(model.weight.grad[0, ONES:].float().mean()) == pytest.approx(small, rel=0.02)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="gradients have the weight's format before 2.10")
@pytest.mark.parametrize(
    ("plan", "dtype"),
    [
        (with_masters("split"), torch.bfloat16),
        (recipe("fp16-master", loss_scale=LossScale(mode="static", initial_scale=1.0)), torch.float16),
    ],
    ids=["bfloat16", "float16"],
)
def test_under_a_plan_they_add_up_in_float32(plan: Plan, dtype: torch.dtype) -> None:
    model = nn.Linear(64, 1, bias=False)
    precision = prepare(model, torch.optim.SGD(model.parameters(), 1e-3), plan)
    batches = micro_batches(dtype)
    for number, inputs in enumerate(batches, 1):
        with precision.accumulate(last=number == MICRO_BATCHES):
            precision.backward(model(inputs).sum())
    assert model.weight.dtype is dtype
    gradient = model.weight.grad
    assert gradient is not None
    assert gradient[0, :ONES].tolist() == [MICRO_BATCHES] * ONES
    torch.testing.assert_close(gradient[0].double(), batches.double().sum((0, 1)), rtol=1e-4, atol=0)
    assert float(gradient[0, ONES:].mean()) == pytest.approx(205, rel=0.01)
    precision.close()
