# SPDX-License-Identifier: Apache-2.0
"""What the two ranks run for test_sharded.py."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.torch.masters.training import Lion, same_bits
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.torch.masters import MasterWeights, fused
from floatwise.torch.masters.flat import local
from floatwise.torch.stored_weights import Float32View

__all__ = ["two"]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, 1e-2),
    "AdamW, fused": lambda p: optim.AdamW(p, 1e-2, fused=True),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-2),
    "Lion, a user's": lambda p: Lion(p, 1e-2),
}
STEPS = 3


def network() -> nn.Sequential:
    """Returns layers whose rows do not divide by two: the ranks' shards differ in size, and one is empty."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def sharded() -> nn.Module:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def batch(step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, 6, generator=generator).to(dtype)


def backward(model: nn.Module, step: int) -> None:
    dtype = next(model.parameters()).dtype
    model(batch(step, dtype)).float().square().mean().backward()


def train(model: nn.Module, optimizer: Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


def same_everywhere(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(same_bits(local(a), local(b)) for a, b in zip(left, right, strict=True))


def equals_float32(name: str, mode: str) -> dict[str, bool]:
    """Trains with masters, and float32 weights by the gradients of that."""
    low, wide = sharded(), sharded()
    optimizer = MasterWeights(OPTIMIZERS[name](low.parameters()), mode, dtype=torch.bfloat16, model=low)
    reference = OPTIMIZERS[name](wide.parameters())
    for step in range(STEPS):
        backward(low, step)
        for p, w in zip(low.parameters(), wide.parameters(), strict=True):
            assert isinstance(p.grad, DTensor)
            assert p.grad.dtype is torch.bfloat16
            w.grad = p.grad.float()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
    states = [
        torch.equal(local(reference.state[w][key]), local(optimizer.state[p][key]))
        for p, w in zip(low.parameters(), wide.parameters(), strict=True)
        for key in reference.state[w]
        if isinstance(reference.state[w][key], Tensor)
    ]
    return {
        "weights": same_everywhere([optimizer.master(p) for p in low.parameters()], list(wide.parameters())),
        "states": all(states),
        "sharded": all(isinstance(optimizer.master(p), DTensor) for p in low.parameters()),
        "bfloat16": all(p.dtype is torch.bfloat16 for p in low.parameters()),
    }


def resumed(mode: str, folder: str) -> dict[str, bool]:
    """Saves through torch.distributed.checkpoint, loads into another run and goes on."""

    def run() -> tuple[nn.Module, MasterWeights]:
        model = sharded()
        inner = optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        return model, MasterWeights(inner, mode, dtype=torch.bfloat16, model=model)

    model, optimizer = run()
    train(model, optimizer, 0, 2)
    saved: dict[str, Any] = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    exact = [optimizer.master(p).full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    save(saved, checkpoint_id=folder)
    train(model, optimizer, 2, 4)

    other, second = run()
    train(other, second, 5, 6)
    blank: dict[str, Any] = {"model": get_model_state_dict(other), "optimizer": get_optimizer_state_dict(other, second)}
    load(blank, checkpoint_id=folder)
    set_model_state_dict(other, blank["model"])
    set_optimizer_state_dict(other, second, blank["optimizer"])
    train(other, second, 2, 4)
    plain = network()
    plain.load_state_dict(full)
    return {
        "resumed": same_everywhere(
            [optimizer.master(p) for p in model.parameters()], [second.master(p) for p in other.parameters()]
        ),
        "float32 shards": all(v.dtype is torch.float32 for v in saved["model"].values()),
        "float32 model": all(same_bits(p, e) for p, e in zip(plain.parameters(), exact, strict=True)),
    }


def rounding_by_chance() -> dict[str, Any]:
    """Rounds shards and replicas of one weight, all of whose elements are equal."""
    mesh = init_device_mesh("cpu", (2,))
    rounded = {}
    for name, placement in (("shard", Shard(0)), ("replica", Replicate())):
        weight = nn.Parameter(distribute_tensor(torch.ones(512).bfloat16(), mesh, [placement]))
        model = nn.Module()
        model.weight = weight
        optimizer = MasterWeights(optim.SGD([weight], lr=1.0), "stochastic", model=model)
        weight.grad = distribute_tensor(torch.full((512,), -(2.0**-8)).bfloat16(), mesh, [placement])
        optimizer.step()
        rounded[name] = local(weight).float().tolist()[:256]
    return rounded


def data_parallel() -> dict[str, Any]:
    """Trains under DDP, which sums gradients only as long as it knows the parameters' formats."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(network())
    inner = optim.AdamW(ddp.parameters(), lr=1e-2)
    try:
        MasterWeights(inner, dtype=torch.bfloat16)
        refused = ""
    except BadInputError as error:
        refused = str(error)
    optimizer = MasterWeights(inner, dtype=torch.bfloat16, model=ddp)
    average = optim.swa_utils.AveragedModel(copy.deepcopy(ddp.module))
    exact = []
    for step in range(STEPS):
        train(ddp, optimizer, step, step + 1)
        average.update_parameters(Float32View(ddp.module))  # type: ignore[arg-type]
        exact.append([optimizer.master(p) for p in ddp.parameters()])
    means = [torch.stack(values).mean(dim=0) for values in zip(*exact, strict=True)]
    return {
        "refused": refused,
        "weights": [w.tolist() for w in exact[-1]],
        "averaged": all(map(torch.allclose, average.module.parameters(), means)),
    }


def without_model() -> str:
    model = sharded()
    try:
        MasterWeights(optim.SGD(model.parameters()), dtype=torch.bfloat16)
    except BadInputError as error:
        return str(error)
    return ""


def two() -> dict[str, Any]:
    """Returns what one of two ranks has found."""
    fused._CPU_ELEMENTS = 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of checkpoints
        equal = {(name, mode): equals_float32(name, mode) for name in OPTIMIZERS for mode in ("split", "float32")}
        folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else "" for _ in range(4)]
        dist.broadcast_object_list(folders, src=0)
        modes = ("split", "float32", "kahan", "stochastic")
        again = {mode: resumed(mode, folder) for mode, folder in zip(modes, folders, strict=True)}
    assert all(Path(folder).exists() for folder in folders)
    return {
        "equal": equal,
        "resumed": again,
        "chance": rounding_by_chance(),
        "ddp": data_parallel(),
        "without model": without_model(),
    }
