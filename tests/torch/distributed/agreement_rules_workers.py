# SPDX-License-Identifier: Apache-2.0
"""What the ranks run for test_agreement_rules.py: one function per question, its answer on each of two ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from tests.torch.distributed.agreement_layouts import mesh, on, plain
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.optim import SGD, AdamW, Optimizer

from floatwise.errors import BadInputError
from floatwise.torch import LossScaler
from floatwise.torch.distributed.agreement import found_inf_everywhere, unscale_gradients

__all__ = ["answers"]

#: What `last_step` and the scale were after each step.
Seen = list[tuple[str | None, float]]

CPU = torch.device("cpu")
MAKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "loop": lambda parameters: SGD(parameters, lr=0.5),
    "fused": lambda parameters: AdamW(parameters, lr=0.5, fused=True),
}


def bad_on(rank: int) -> dict[torch.device, Tensor]:
    return {CPU: torch.tensor(float(dist.get_rank() == rank))}


def scaler(scale: float = 8.0) -> LossScaler:
    made = LossScaler("cpu", init_scale=scale)
    made.scale(torch.ones(()))  # makes the scale's tensor
    return made


@contextmanager
def refused() -> Iterator[list[str]]:
    said: list[str] = []
    try:
        yield said
    except (BadInputError, AssertionError) as error:
        said.append(f"{type(error).__name__}: {error}")


def largest_of_all_ranks() -> list[float]:
    return [found_inf_everywhere(bad_on(rank), [plain()])[CPU].item() for rank in (-1, 0, 1)]


def a_group_of_one_decides_alone() -> list[float]:
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    calls = 1 + 2 * dist.get_rank()  # nobody waits for the other
    return [found_inf_everywhere(bad_on(0), [plain()], alone)[CPU].item() for _ in range(calls)]


def a_group_without_the_parameters_other_ranks() -> list[str]:
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    with refused() as said:
        found_inf_everywhere(bad_on(0), [plain(), on(mesh("x"), Shard(0))], alone)
    return said


def a_group_without_this_rank() -> list[str]:
    first = dist.new_group([0])
    with refused() as said:
        found_inf_everywhere(bad_on(0), [plain()], first)
    return said


def scalers_with_groups_of_their_own() -> Seen:
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    weight, seen = plain(), Seen()
    optimizer, s = SGD([weight], lr=0.5), LossScaler("cpu", init_scale=8.0, process_group=alone)
    s.scale(torch.ones(()))
    for step in range(1 + dist.get_rank()):
        weight.grad = torch.full((2,), math.inf if step == 0 and dist.get_rank() == 0 else 1.0)
        s.step(optimizer)
        s.update()
        seen.append((s.last_step, s.get_scale()))
    return seen


def only_rank_0_has_gradients(kind: str) -> Seen:
    """FSDP1 leaves a rank without gradients when its shard holds nothing of the optimizer's parameters."""
    weight = plain()
    optimizer, s, seen = MAKERS[kind]([weight]), scaler(), Seen()
    for factor in (1.0, math.inf, 1.0):
        weight.grad = torch.ones(2) * factor if dist.get_rank() == 0 else None
        s.step(optimizer)
        s.update()
        seen.append((s.last_step, s.get_scale()))
    return seen


def no_rank_has_gradients() -> list[str]:
    with refused() as said:
        scaler().step(SGD([plain()], lr=0.5))
    return said


def two_optimizers_one_update() -> dict[str, Any]:
    weights: list[Any] = [plain(), on(mesh("x"), Shard(0))]
    optimizers, s = [SGD([w], lr=0.5) for w in weights], scaler()
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    if dist.get_rank() == 1:
        weights[1].grad.to_local()[0, 0] = math.inf
    told = []
    for optimizer in optimizers:
        s.step(optimizer)
        told.append(s.last_step)
    s.update()
    return {"told": told, "scale": s.get_scale(), "skipped": s.skipped_steps}


def unscaled_before_on_one_rank_only() -> Seen:
    weight = plain()
    optimizer, s, seen = SGD([weight], lr=0.5), scaler(), Seen()
    for rank in (0, 1):
        weight.grad = torch.ones(2) * (math.inf if dist.get_rank() == rank else 1.0)
        if dist.get_rank() == 0:
            s.unscale_(optimizer)
        s.step(optimizer)
        s.update()
        seen.append((s.last_step, s.get_scale()))
    return seen


def partial_sum(kind: type[GradScaler], term: float) -> dict[str, Any]:
    """A replicated weight whose gradient is the sum of a term on each rank, not yet summed."""
    weight: Any = nn.Parameter(DTensor.from_local(torch.ones(2), mesh("x"), [Replicate()]))
    weight.grad = DTensor.from_local(torch.full((2,), term), mesh("x"), [Partial()])
    optimizer, s = SGD([weight], lr=0.5), kind("cpu", init_scale=1.0)
    s.scale(torch.ones(()))
    s.step(optimizer)
    placements = [type(p).__name__ for p in weight.grad.placements]
    return {"weight": weight.to_local().tolist(), "placements": placements}


def one_reduction_and_no_wait() -> dict[str, Any]:
    parameters = [plain(), on(mesh("x"), Shard(0)), on(mesh("x"), Replicate())]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = SGD(parameters, lr=0.5)
    # A stand-in for what makes the host wait for a device.
    waits = mock.patch.object(Tensor, "item", side_effect=AssertionError("the host waits"))
    reduce = mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce)
    with waits, reduce as reduced:
        local = unscale_gradients(optimizer, torch.tensor(0.125), torch.tensor(0.0), False)
        assert reduced.call_count == 0
        found_inf_everywhere(local, parameters)
    return {"reductions": reduced.call_count, "numbers": [call.args[0].numel() for call in reduced.call_args_list]}


def sparse_and_plain() -> Seen:
    table, s = nn.Embedding(4, 2, sparse=True), scaler()
    optimizer, seen = SGD(table.parameters(), lr=0.5), Seen()
    for rank in (-1, 0, 1):
        optimizer.zero_grad()
        s.scale(table(torch.tensor([1, 1])).sum() * (math.inf if dist.get_rank() == rank else 1.0)).backward()
        s.step(optimizer)
        s.update()
        seen.append((s.last_step, s.get_scale()))
    return seen


def answers() -> dict[str, Any]:
    return {
        "largest": largest_of_all_ranks(),
        "alone": a_group_of_one_decides_alone(),
        "not covered": a_group_without_the_parameters_other_ranks(),
        "not a member": a_group_without_this_rank(),
        "scalers alone": scalers_with_groups_of_their_own(),
        "gradients on one rank, loop": only_rank_0_has_gradients("loop"),
        "gradients on one rank, fused": only_rank_0_has_gradients("fused"),
        "no gradients": no_rank_has_gradients(),
        "two optimizers": two_optimizers_one_update(),
        "unscaled before": unscaled_before_on_one_rank_only(),
        "sum overflows": partial_sum(LossScaler, 2.0**127),
        "sum overflows, stock": partial_sum(GradScaler, 2.0**127),
        "sum is finite": partial_sum(LossScaler, 1.0),
        "sum is finite, stock": partial_sum(GradScaler, 1.0),
        "cost": one_reduction_and_no_wait(),
        "sparse": sparse_and_plain(),
    }
