# SPDX-License-Identifier: Apache-2.0
"""What the ranks run for test_agreement.py: an infinity in one place of one rank, everything else healthy."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from tests.torch.distributed.agreement_layouts import FOUR, FUSED_ADAMW_ONLY, TWO, Model, local
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from floatwise.torch import LossScaler

__all__ = ["FAULTS", "Case", "Ran", "faults", "four", "two"]

SCALE = 8.0

SCALERS: dict[str, Callable[[], GradScaler]] = {
    "LossScaler": lambda: LossScaler("cpu", init_scale=SCALE),
    "GradScaler": lambda: GradScaler("cpu", init_scale=SCALE),
    "ShardedGradScaler": lambda: ShardedGradScaler("cpu", init_scale=SCALE),
}

OPTIMIZERS: dict[str, Callable[[Model], Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, foreach=False),
    "SGD fused": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda model: torch.optim.AdamW(groups(model), lr=0.1, foreach=False),
    "AdamW fused": lambda model: torch.optim.AdamW(groups(model), lr=0.1, fused=True),
}


class Case(NamedTuple):
    """One training of three steps.

    Attributes:
      scaler: A name of `SCALERS`; empty trains without one.
      unscale: True calls `unscale_` before `step`.
      rank: Where the second step's infinity is; -1 for a step without.
      parameter: In whose gradient, by its place in the optimizer.
    """

    layout: str
    optimizer: str
    unscale: bool = False
    scaler: str = "LossScaler"
    rank: int = -1
    parameter: int = -1


@dataclass
class Ran:
    """What one rank has seen.

    Attributes:
      weights: Digest of this rank's weights at the start and after each step.
      scales: The loss scale after each step.
      steps: What `last_step` said after each step; empty for GradScaler.
      skipped: `skipped_steps` at the end.
      injected: True when this rank had the infinity: a parameter may have no element here.
      error: What was raised instead of going on.
    """

    weights: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    steps: list[str | None] = field(default_factory=list)
    skipped: int = 0
    injected: bool = False
    error: str = ""


def groups(model: Model) -> list[dict[str, list[torch.nn.Parameter]]]:
    """One group per parameter: fused kernels take no plain tensors and DTensors, or two meshes, in one."""
    return [{"params": [parameter]} for parameter in model.parameters]


def digest(model: Model) -> str:
    whole = hashlib.sha256()
    for parameter in model.parameters:
        whole.update(local(parameter.detach()).contiguous().numpy().tobytes())
    return whole.hexdigest()[:12]


def inject(model: Model, index: int) -> bool:
    """Puts an infinity into a gradient as this rank stores it; False when it stores nothing of it."""
    gradient = model.parameters[index].grad
    if gradient is None or not local(gradient).numel():
        return False
    local(gradient).view(-1)[0] = math.inf
    return True


def run_case(case: Case, make: Callable[[], Model]) -> Ran:
    model = make()
    optimizer = OPTIMIZERS[case.optimizer](model)
    scaler = SCALERS[case.scaler]() if case.scaler else GradScaler("cpu", enabled=False)
    ran = Ran([digest(model)])
    try:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(model.loss()).backward()
            if step == 1 and case.rank == dist.get_rank():
                ran.injected = inject(model, case.parameter)
            if case.unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            ran.weights.append(digest(model))
            ran.scales.append(scaler.get_scale())
            if isinstance(scaler, LossScaler):
                ran.steps.append(scaler.last_step)
    except (AssertionError, RuntimeError) as error:
        ran.error = f"{type(error).__name__}: {error}"
    if isinstance(scaler, LossScaler):
        ran.skipped = scaler.skipped_steps
    return ran


def positions(make: Callable[[], Model]) -> list[tuple[int, int]]:
    """Returns every rank with the first and with the last parameter."""
    return list(itertools.product(range(dist.get_world_size()), (0, len(make().parameters) - 1)))


def cases(make: Callable[[], Model], layout: str, *, every_way: bool) -> Iterator[Case]:
    """Yields what is trained of a layout: most of ours with AdamW, less of SGD, the last position with torch's own.

    Without `every_way` positions have their infinity in the two ways that differ most, and the last one in all ways.
    """
    ways = list(itertools.product(("AdamW", "AdamW fused"), (False, True)))
    sgd = ["SGD"] if layout in FUSED_ADAMW_ONLY else ["SGD", "SGD fused"]
    where = positions(make)
    for optimizer, scaler in itertools.product((*sgd, "AdamW", "AdamW fused"), ("", "LossScaler", "GradScaler")):
        yield Case(layout, optimizer, scaler=scaler)
    for optimizer, unscale in ways:
        for place in where if every_way or unscale == (optimizer == "AdamW") else where[-1:]:
            yield Case(layout, optimizer, unscale, "LossScaler", *place)
    for optimizer, place in itertools.product(sgd, (where[0], where[-1])):
        yield Case(layout, optimizer, False, "LossScaler", *place)
    for (optimizer, unscale), scaler in itertools.product(ways, ("GradScaler", "ShardedGradScaler")):
        yield Case(layout, optimizer, unscale, scaler, *where[-1])


def run(layouts: dict[str, Callable[[], Model]], *, every_way: bool) -> dict[Case, Ran]:
    return {c: run_case(c, make) for name, make in layouts.items() for c in cases(make, name, every_way=every_way)}


def two() -> dict[Case, Ran]:
    return run(TWO, every_way=True)


def four() -> dict[Case, Ran]:
    return run(FOUR, every_way=False)


#: DESIGN's faults of torch in their plainest form: what goes wrong, and where.
FAULTS: dict[str, Case] = {
    "fused without unscale_": Case("FSDP1 flat", "AdamW fused", False, rank=0, parameter=0),
    "fused after unscale_": Case("FSDP1 flat", "AdamW fused", True, rank=0, parameter=0),
    "replicated before sharded": Case("replicated, sharded", "AdamW", True, rank=0, parameter=1),
    "sharded before replicated": Case("sharded, replicated", "AdamW", True, rank=0, parameter=0),
    "plain beside sharded": Case("plain, sharded", "AdamW", True, rank=0, parameter=1),
}


def faults() -> dict[Case, Ran]:
    wanted = [case._replace(scaler=scaler) for case in FAULTS.values() for scaler in SCALERS]
    return {case: run_case(case, TWO[case.layout]) for case in wanted}
