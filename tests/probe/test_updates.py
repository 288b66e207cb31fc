# SPDX-License-Identifier: Apache-2.0
"""Updates that a 16-bit weight would lose, by the exact rule and against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from floatwise.probe.updates import UpdateProbe
from floatwise.stats.torch import SummaryCollector

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def probed(before: list[Tensor], after: list[Tensor]) -> tuple[UpdateProbe, SummaryCollector[tuple[str, str]]]:
    """Probes a step that takes parameters from one value to another."""
    collector: SummaryCollector[tuple[str, str]] = SummaryCollector()
    probe = UpdateProbe(collector)
    parameters = [(f"p{i}", nn.Parameter(value.clone())) for i, value in enumerate(before)]
    for _, parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    probe.before(parameters)
    for (_, parameter), value in zip(parameters, after, strict=True):
        parameter.data.copy_(value)
    probe.after()
    collector.flush()
    return probe, collector


@pytest.mark.parametrize("size", [1e-8, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("weight", [1e-6, 0.02, 1.0, 300.0])
def test_lost_updates_are_those_that_numpy_loses(size: float, weight: float) -> None:
    torch.manual_seed(0)
    old = torch.randn(1000) * weight
    new = old + torch.randn(1000) * size * weight
    probe, _ = probed([old], [new])
    update = (new - old).numpy()
    expected = {}
    for name, kind in NUMPY.items():
        stored = old.numpy().astype(kind)
        kept = (stored.astype(np.float32) + update).astype(kind)
        expected[name] = int(((kept == stored) & (update != 0)).sum())
    stalls = {stall.parameter: stall for stall in probe.stalls()}
    if not update.any():
        assert stalls == {}
        return
    assert stalls["p0"].moved == int(np.count_nonzero(update))
    assert dict(stalls["p0"].lost) == expected


def test_half_an_ulp_is_the_border() -> None:
    ulp = 2.0**-7  # of bfloat16 from 1 to 2
    steps = torch.tensor([0.49, 0.5, 0.51, 1.0]) * ulp
    probe, _ = probed([torch.ones(4)], [1 + steps])
    (stall,) = probe.stalls()
    assert stall.moved == 4
    assert stall.lost["bfloat16"] == 2, "a tie goes to the even neighbour, which is the weight itself"


def test_parameters_that_do_not_move_are_left_out() -> None:
    probe, collector = probed([torch.ones(3), torch.ones(3)], [torch.ones(3), torch.zeros(3)])
    assert [stall.parameter for stall in probe.stalls()] == ["p1"]
    update = collector.summaries()["p1", "update"]
    assert (update.amax, update.elements) == (1.0, 3)


def test_parameters_without_a_gradient_are_not_compared() -> None:
    collector: SummaryCollector[tuple[str, str]] = SummaryCollector()
    probe = UpdateProbe(collector)
    frozen = nn.Parameter(torch.ones(3))
    probe.before([("frozen", frozen)])
    frozen.data.zero_()
    probe.after()
    assert probe.stalls() == ()


def test_steps_add_up() -> None:
    collector: SummaryCollector[tuple[str, str]] = SummaryCollector()
    probe = UpdateProbe(collector)
    parameter = nn.Parameter(torch.ones(10))
    parameter.grad = torch.ones(10)
    for _ in range(3):
        probe.before([("p", parameter)])
        parameter.data.mul_(1.001)
        probe.after()
    (stall,) = probe.stalls()
    assert (stall.moved, stall.lost["bfloat16"]) == (30, 30)


def test_a_large_parameter_is_sampled() -> None:
    old = torch.randn(100_000)
    probe, _ = probed([old], [old * 2])
    (stall,) = probe.stalls()
    assert 2_000 < stall.moved < 6_000
    assert stall.lost == {"float16": 0, "bfloat16": 0}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_of_weights(dtype: torch.dtype) -> None:
    old = torch.ones(4, dtype=dtype)
    probe, _ = probed([old], [old * 2])
    assert probe.stalls()[0].moved == 4
