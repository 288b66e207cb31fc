# SPDX-License-Identifier: Apache-2.0
"""Every way in which parameters may live on several ranks, as a small model with a loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

__all__ = ["FOUR", "FUSED_ADAMW_ONLY", "TWO", "Model", "layers", "local", "mesh", "on", "parallel", "plain"]


@dataclass(frozen=True)
class Model:
    """Parameters in the order in which the optimizer gets them, and the loss of this rank's batch."""

    parameters: list[nn.Parameter]
    loss: Callable[[], Tensor]


def local(tensor: Tensor) -> Tensor:
    """Returns what this rank stores of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@cache
def mesh(*names: str) -> DeviceMesh:
    """Returns a mesh of all ranks; of two dimensions when two are named, with two ranks along the last."""
    count = dist.get_world_size()
    return init_device_mesh("cpu", (count // 2, 2) if len(names) == 2 else (count,), mesh_dim_names=names)


def on(where: DeviceMesh, *placements: Placement, rows: int = 4) -> nn.Parameter:
    return nn.Parameter(distribute_tensor(torch.arange(1.0, 2 * rows + 1).reshape(rows, 2), where, list(placements)))


def plain() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0]))


def squares(*parameters: nn.Parameter) -> Model:
    return Model(list(parameters), lambda: torch.stack([local(p).square().sum() for p in parameters]).sum())


def of(
    module: nn.Module, *more: nn.Parameter, same_batch: bool = False, owner: nn.Module | None = None, width: int = 4
) -> Model:
    """Returns a model whose batch differs between the ranks, unless it must be the same."""
    generator = torch.Generator().manual_seed(0 if same_batch else dist.get_rank())
    batch = torch.randn(2, 4, width, generator=generator)

    def loss() -> Tensor:
        result: Tensor = module(batch).square().mean()
        return result + sum(local(p).square().sum() for p in more)

    return Model([*more, *(owner or module).parameters()], loss)


def layers(*kinds: str) -> nn.Sequential:
    torch.manual_seed(0)
    made: dict[str, Callable[[], nn.Module]] = {
        "norm": lambda: nn.LayerNorm(4),
        "up": lambda: nn.Linear(4, 6),
        "down": lambda: nn.Linear(6, 4),
        "up without bias": lambda: nn.Linear(4, 6, bias=False),
        "down without bias": lambda: nn.Linear(6, 4, bias=False),
    }
    return nn.Sequential(*(made[kind]() for kind in kinds))


def fsdp1(original: bool, strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD) -> Model:
    groups = None
    if strategy is ShardingStrategy.HYBRID_SHARD:
        both = mesh("replicate", "shard")
        groups = (both.get_group("shard"), both.get_group("replicate"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have an accelerator
        wrapped = FullyShardedDataParallel(
            layers("up", "down"),
            process_group=groups,
            sharding_strategy=strategy,
            use_orig_params=original,
            device_id=torch.device("cpu"),
        )
    return of(wrapped)


def fsdp2(where: DeviceMesh, *more: nn.Parameter) -> Model:
    module = layers("up", "down")
    fully_shard(module, mesh=where)
    return of(module, *more)


def parallel(where: DeviceMesh, module: nn.Sequential, styles: Sequence[ParallelStyle | None]) -> nn.Sequential:
    parallelize_module(module, where, {str(i): style for i, style in enumerate(styles) if style})
    return module


def tensor_parallel() -> Model:
    """The norm stays a plain module beside the sharded ones."""
    module = layers("norm", "up", "down")
    return of(parallel(mesh("tp"), module, [None, ColwiseParallel(), RowwiseParallel()]), same_batch=True)


def sequence_parallel() -> Model:
    """The gradients of the norm are partial sums: each rank has seen its part of the sequence."""
    module = layers("norm", "up without bias", "down without bias")
    styles = [SequenceParallel(), ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel()]
    return of(parallel(mesh("tp"), module, styles), same_batch=True)


def fsdp2_of_tensor_parallel() -> Model:
    both = mesh("dp", "tp")
    module = parallel(both["tp"], layers("norm", "up", "down"), [None, ColwiseParallel(), RowwiseParallel()])
    fully_shard(module, mesh=both["dp"])
    return of(module, same_batch=True)


def pipeline_stage() -> Model:
    """Each pair of ranks shards a stage of its own."""
    both = mesh("stage", "shard")
    return squares(on(both["shard"], Shard(0), rows=4 + 2 * both.get_local_rank("stage")), plain())


TWO: dict[str, Callable[[], Model]] = {
    "plain": lambda: squares(plain(), plain()),
    "sharded": lambda: squares(on(mesh("x"), Shard(0)), on(mesh("x"), Shard(1))),
    "replicated, sharded": lambda: squares(on(mesh("x"), Replicate()), on(mesh("x"), Shard(0))),
    "sharded, replicated": lambda: squares(on(mesh("x"), Shard(0)), on(mesh("x"), Replicate())),
    "plain, sharded": lambda: squares(plain(), on(mesh("x"), Shard(0))),
    "sharded, plain": lambda: squares(on(mesh("x"), Shard(0)), plain()),
    "a shard is empty": lambda: squares(on(mesh("x"), Shard(0), rows=1), on(mesh("x"), Shard(0), rows=3)),
    "DDP": lambda: of(DistributedDataParallel(layers("up", "down"))),
    "FSDP1 flat": lambda: fsdp1(original=False),
    "FSDP1 original": lambda: fsdp1(original=True),
    "FSDP2": lambda: fsdp2(mesh("x")),
    "FSDP2 after replicated": lambda: fsdp2(mesh("x"), on(mesh("x"), Replicate())),
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
}

FOUR: dict[str, Callable[[], Model]] = {
    "HSDP2": lambda: fsdp2(mesh("replicate", "shard")),
    "HSDP1": lambda: fsdp1(original=True, strategy=ShardingStrategy.HYBRID_SHARD),
    "FSDP2 of tensor parallel": fsdp2_of_tensor_parallel,
    "two meshes and plain": lambda: squares(
        on(mesh("a", "b")["b"], Shard(0)), on(mesh("a", "b")["a"], Shard(0)), plain()
    ),
    "replicated on one axis": lambda: squares(
        on(mesh("a", "b"), Replicate(), Shard(0)), on(mesh("a", "b"), Shard(0), Replicate())
    ),
    "pipeline of sharded stages": pipeline_stage,
}

# Those with DTensors: torch 2.13 has no fused SGD of them.
FUSED_ADAMW_ONLY = {*TWO, *FOUR} - {"plain", "DDP", "FSDP1 flat", "FSDP1 original", "HSDP1"}
