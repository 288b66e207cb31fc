# SPDX-License-Identifier: Apache-2.0
"""What two ranks run for test_accumulation.py: micro-batches, clipping and averages of distributed models."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from tests.torch.loop_parts import AUTOCAST, batches, loss_of, model, overflowing
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import BadInputError
from floatwise.torch import Precision, StepInfo, prepare
from floatwise.torch.average import WeightAverage

__all__ = ["MANY", "PARTS", "WRAPPED", "run"]

PARTS = 3
MANY = 600


def _ddp() -> nn.Module:
    return DistributedDataParallel(model())


def _fsdp2() -> nn.Module:
    net = model()
    fully_shard(net[0])
    fully_shard(net)
    return net


WRAPPED: dict[str, Callable[[], nn.Module]] = {"DDP": _ddp, "FSDP2": _fsdp2}


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(net: nn.Module) -> list[Tensor]:
    return [whole(p) for p in net.parameters()]


def own_batches(steps: int) -> list[Any]:
    """This rank's micro-batches."""
    return batches(2 * PARTS * steps)[dist.get_rank() :: 2]


def accumulate(
    precision: Precision, net: nn.Module, data: list[Any], context: bool = True
) -> tuple[list[StepInfo], list[Any]]:
    """Trains; also returns what the first gradient was after each micro-batch of the first step."""
    infos: list[StepInfo] = []
    seen: list[Any] = []
    parameter = next(net.parameters())
    for number, batch in enumerate(data, 1):
        last = number % PARTS == 0
        with precision.accumulate(last=last) if context else nullcontext():
            with precision.forward():
                loss = loss_of(net, batch)
            precision.backward(loss, accumulation_steps=PARTS)
        if number <= PARTS:
            seen.append(None if parameter.grad is None else whole(parameter.grad))
        if last:
            infos.append(precision.step(clip_norm=0.5))
            precision.zero_grad()
    return infos, seen


def by_hand(net: DistributedDataParallel, name: str, data: list[Any]) -> None:
    """As PyTorch's documentation accumulates under DDP and a GradScaler."""
    optimizer = adam(net)
    scaler = torch.amp.GradScaler("cpu", enabled=name == "fp16-mixed")
    dtype = AUTOCAST[name]
    for number, batch in enumerate(data, 1):
        last = number % PARTS == 0
        with nullcontext() if last else net.no_sync():
            with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                loss = loss_of(net, batch)
            scaler.scale(loss / PARTS).backward()
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def _training(wrapped: str, name: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for context in (True, False):
        net = WRAPPED[wrapped]()
        with closing(prepare(net, adam(net), name)) as precision:
            results["infos"], seen = accumulate(precision, net, own_batches(2), context)
            results["reduced once" if context else "reduced each time"] = weights(net)
            if context:
                results["gradients"] = seen
    if wrapped == "DDP" and name in AUTOCAST:
        net = WRAPPED[wrapped]()
        assert isinstance(net, DistributedDataParallel)
        by_hand(net, name, own_batches(2))
        results["by hand"] = weights(net)
    return results


def _many() -> dict[str, list[list[float]] | None]:
    """The gradient of a 16-bit weight under DDP after many micro-batches, each of 1 on rank 0 and 2 on rank 1."""
    found = {}
    for way in ("accumulate", "no_sync", "reduced each time"):
        net = DistributedDataParallel(nn.Linear(2, 1, bias=False))
        with closing(prepare(net, adam(net), "bf16-master")) as precision:
            for number in range(1, MANY + 1):
                last = number == MANY
                own = net.no_sync() if way == "no_sync" and not last else nullcontext()
                with precision.accumulate(last=last) if way == "accumulate" else own:
                    with precision.forward():
                        loss = net(torch.full((1, 2), 1.0 + dist.get_rank())).sum()
                    precision.backward(loss)
            found[way] = net.module.weight.grad.tolist()
    return found


def _overflow(wrapped: str) -> list[Any]:
    """Rank 1 overflows in a micro-batch that is not the last; a healthy step follows."""
    net = WRAPPED[wrapped]()
    before = weights(net)
    with closing(prepare(net, adam(net), "fp16-mixed")) as precision:
        for number in range(1, PARTS + 1):
            with precision.accumulate(last=number == PARTS):
                bad = (dist.get_rank(), number) == (1, 1)
                with precision.forward():
                    loss = loss_of(net, batches(1)[0]) * (math.inf if bad else 1.0)
                precision.backward(loss)
        skipped = precision.step()
        kept = all(map(torch.equal, before, weights(net)))
        precision.zero_grad()
        infos, _ = accumulate(precision, net, own_batches(1))
        return [skipped, kept, infos, weights(net)]


def _norms() -> dict[float, tuple[float, float, list[Tensor], list[Tensor]]]:
    """Norms and clipped gradients of one model: sharded in part, and whole."""
    results = {}
    for order in (1.0, 2.0, math.inf):
        norms, gradients = [], []
        for sharded in (True, False):
            net = model()
            if sharded:
                fully_shard(net[0])  # DTensors before plain tensors
            with closing(prepare(net, adam(net), "fp32")) as precision:
                precision.backward(loss_of(net, batches(1)[0]))  # the same batch on both ranks
                norms.append(precision.step(clip_norm=0.01, norm_type=order).grad_norm)
                gradients.append([whole(p.grad) for p in net.parameters() if p.grad is not None])
        results[order] = (norms[0] or 0.0, norms[1] or 0.0, gradients[0], gradients[1])
    return results


def _averages(wrapped: str, name: str) -> tuple[list[str], list[Tensor], list[Tensor], bool]:
    """Names and values of an average, what the model has within `applied`, and whether it is itself after it."""
    net = WRAPPED[wrapped]()
    with closing(prepare(net, adam(net), name)) as precision:
        average = WeightAverage(net, 0.5)
        infos, _ = accumulate(precision, net, own_batches(1))
        average.update(infos[0])
        own = weights(net)
        with average.applied():
            within = weights(net)
        state = average.model_state_dict()
        return list(state), [whole(t) for t in state.values()], within, all(map(torch.equal, own, weights(net)))


def _fsdp1() -> tuple[str, float, float, bool]:
    """The message for clip_norm, and the norm by the way it suggests, beside that of the whole model."""
    whole_model = model()
    loss_of(whole_model, batches(1)[0]).backward()
    expected = nn.utils.get_total_norm([p.grad for p in whole_model.parameters() if p.grad is not None])
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    with closing(prepare(net, adam(net), "fp16-mixed")) as precision:
        precision.backward(loss_of(net, batches(1)[0]))
        try:
            precision.step(clip_norm=1.0)
        except BadInputError as error:
            message = str(error)
        precision.unscale()
        norm = net.clip_grad_norm_(1.0)
        stepped = precision.step().stepped
    return message, float(norm), float(expected), stepped


def _one_rank_overflows_without_a_scale() -> tuple[StepInfo, bool]:
    """A plain model on each rank, as pipeline stages are; rank 1 has an infinity."""
    net = model()
    before = weights(net)
    with closing(prepare(net, adam(net), "bf16-mixed")) as precision:
        precision.backward(overflowing(net) if dist.get_rank() == 1 else loss_of(net, batches(1)[0]))
        info = precision.step(clip_norm=1.0)
    return info, all(map(torch.equal, before, weights(net)))


def run() -> dict[str, Any]:
    names = (*AUTOCAST, "bf16-master")
    return {
        "training": {(w, name): _training(w, name) for w in WRAPPED for name in names},
        "many": _many(),
        "overflow": {w: _overflow(w) for w in WRAPPED},
        "norms": _norms(),
        "averages": {(w, name): _averages(w, name) for w in WRAPPED for name in ("fp32", "bf16-master")},
        "FSDP1": _fsdp1(),
        "without a scale": _one_rank_overflows_without_a_scale(),
    }
