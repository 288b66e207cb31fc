# SPDX-License-Identifier: Apache-2.0
"""What the ranks run for test_agreement_prepare.py: a plan applied to models of several ranks, an infinity on one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from tests.torch.distributed.agreement_layouts import layers, local, mesh, parallel
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn.parallel import DistributedDataParallel

from floatwise.torch import prepare

__all__ = ["MODELS", "Step", "Use", "steps_of_every_use"]


class Use(NamedTuple):
    """One way to use `prepare`; `rank` has the infinity in the second step."""

    model: str
    plan: str
    clip_norm: float | None
    fused: bool
    rank: int


class Step(NamedTuple):
    """What one rank has seen of a step; its weights are finite, and moved or are those before."""

    stepped: bool
    skipped: bool
    loss_scale: float
    moved: bool
    finite: bool


def fsdp2() -> nn.Module:
    module = layers("up", "down")
    fully_shard(module, mesh=mesh("x"))
    return module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "DDP": lambda: DistributedDataParallel(layers("up", "down")),
    "FSDP2": fsdp2,
    "tensor parallel": lambda: parallel(
        mesh("tp"), layers("norm", "up", "down"), [None, ColwiseParallel(), RowwiseParallel()]
    ),
    "a model of its own on each rank": lambda: layers("up", "down"),
}

SETTINGS: list[tuple[str, float | None, bool]] = [
    ("fp32", 1.0, False),
    ("bf16-mixed", 1.0, False),
    ("fp16-mixed", None, True),
    ("fp16-mixed", 1.0, False),
]


def train(use: Use) -> list[Step]:
    model = MODELS[use.model]()
    parameters = list(model.parameters())
    groups = [{"params": [parameter]} for parameter in parameters]  # see agreement_workers.groups
    optimizer = torch.optim.AdamW(groups, lr=0.1, fused=use.fused, foreach=False)
    generator = torch.Generator().manual_seed(0 if use.model == "tensor parallel" else dist.get_rank())
    batch = torch.randn(2, 4, 4, generator=generator)
    precision = prepare(model, optimizer, use.plan)
    seen = []
    for number in range(3):
        with precision.forward():
            loss = model(batch).float().square().mean()
        precision.backward(loss)
        if number == 1 and use.rank == dist.get_rank():
            gradient = parameters[-1].grad
            assert gradient is not None
            local(gradient).view(-1)[0] = math.inf
        before = [local(p.detach()).clone() for p in parameters]
        info = precision.step(clip_norm=use.clip_norm)
        after = [local(p.detach()) for p in parameters]
        moved = not all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        finite = all(bool(a.isfinite().all()) for a in after)
        seen.append(Step(info.stepped, info.skipped, info.loss_scale, moved, finite))
        precision.zero_grad()
    precision.close()
    return seen


def steps_of_every_use() -> dict[Use, list[Step]]:
    uses = [Use(m, *settings, rank) for m, settings, rank in itertools.product(MODELS, SETTINGS, (0, 1))]
    return {use: train(use) for use in uses}
