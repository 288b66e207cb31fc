# SPDX-License-Identifier: Apache-2.0
"""Run on each rank of test_loss_scaler_ranks: the scale after each update, where ranks see different gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from floatwise.errors import NonFiniteGradientsError
from floatwise.torch import LossScaler

INF, NAN = math.inf, math.nan

#: For each update, the magnitude of a gradient for a loss of 1 and the loss itself: of rank 0, and of rank 1. None is
#: no gradient.
Steps = Sequence[tuple[tuple[float | None, float], tuple[float | None, float]]]

GROWS = (1.0, 1.0)
CASES: dict[str, tuple[dict[str, Any], Steps]] = {
    "one rank's gradient is too large to grow": ({}, [(GROWS, (300.0, 1.0)), ((300.0, 1.0), GROWS), (GROWS, GROWS)]),
    "a rank without gradients": ({}, [((None, 1.0), GROWS), ((None, 1.0), (300.0, 1.0)), (GROWS, (None, 1.0))]),
    # An overflow at once after growth is remembered on both, whichever has it.
    "overflow on one": ({"growth_interval": 4}, [(GROWS, GROWS)] * 4 + [((INF, 1.0), GROWS)] + [(GROWS, GROWS)] * 8),
    "a bad loss on one": ({"growth_interval": 4}, [(GROWS, GROWS)] * 4 + [(GROWS, (NAN, NAN))] + [(GROWS, GROWS)] * 8),
    "a bad loss without overflow": ({}, [((1.0, INF), GROWS), (GROWS, (1.0, NAN))]),
}


def as_one_rank_sees_it(steps: Steps) -> Steps:
    """Returns what one process would see that had all gradients."""
    merged = []
    for ranks in steps:
        gradients = [abs(g) for g, _ in ranks if g is not None]
        bad = [g for g in gradients if not math.isfinite(g)]
        losses = [loss for g, loss in ranks if bad and g is not None and not math.isfinite(g)]
        merged.append((((bad or [max(gradients)])[0], losses[0] if losses else 1.0),) * 2)
    return merged


def scales(settings: dict[str, Any], steps: Steps, make: Callable[[], nn.Parameter], rank: int) -> list[float]:
    s = LossScaler("cpu", **{"init_scale": 8.0, "growth_interval": 1, **settings})
    weight = make()
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = []
    for ranks in steps:
        gradient, loss = ranks[rank]
        s.scale(torch.tensor(loss))
        weight.grad = None
        if gradient is not None:
            weight.grad = weight.detach() * (gradient * s.get_scale())
        s.step(optimizer)
        s.update()
        seen.append(s.get_scale())
    return seen


def plain() -> nn.Parameter:
    return nn.Parameter(torch.ones(2))


def sharded() -> nn.Parameter:
    mesh = init_device_mesh("cpu", (2,))
    return nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Shard(0)]))


def alarm() -> list[Any]:
    s = LossScaler("cpu", init_scale=8.0, alarm_after=2)
    weights: list[Tensor] = [plain(), plain()]
    optimizer = torch.optim.SGD([("first", weights[0]), ("second", weights[1])], lr=0.0)
    for update in range(1, 10):
        s.scale(torch.ones(()))
        for number, weight in enumerate(weights):
            weight.grad = torch.tensor([1.0, INF if dist.get_rank() == number == 1 else 1.0])
        s.step(optimizer)
        try:
            s.update()
        except NonFiniteGradientsError as error:
            elsewhere = "All 2 gradients of this process are finite" in str(error)
            return [update, [str(gradient) for gradient in error.gradients], elsewhere]
    return []


def answers() -> dict[str, Any]:
    rank = dist.get_rank()
    kinds = {"plain": plain, "sharded": sharded}
    return {
        "scales": {
            (kind, case): scales(*CASES[case], make, rank)
            for kind, make in kinds.items()
            for case in CASES
            if (kind, case) != ("sharded", "a rank without gradients")
        },
        "alarm": alarm(),
    }
