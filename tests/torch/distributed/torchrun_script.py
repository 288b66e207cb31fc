# SPDX-License-Identifier: Apache-2.0
"""A training script as people start it: `torchrun --nproc-per-node 2 -m floatwise run torchrun_script.py -- FOLDER`.

It trains under DDP and under FSDP2 and writes what became of both. With `overflow`, one batch of the second rank is too
large for float16; with `fails`, the second rank stops after the training while the first waits for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, BAD_STEP = 6, 2


def main(folder: str, mode: str = "") -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {kind: train(make(), mode, rank) for kind, make in MODELS.items()}
    Path(folder, f"{rank}.json").write_text(json.dumps({"process": os.getpid(), **results}))
    if mode == "fails" and rank == 1:
        raise RuntimeError("the data of rank 1 is broken")
    dist.barrier()
    time.sleep(1.0)  # torch 2.13: exit aborts while a gloo thread still lets go of the last collective
    dist.destroy_process_group()


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, dtype=dtype), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1, dtype=dtype))


def shards(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns the model in FSDP2's own bfloat16, which the plan replaces."""
    network = model(dtype)
    for layer in network.children():
        if dtype is not torch.float32 and isinstance(layer, nn.LayerNorm):
            fully_shard(layer)  # FSDP2 wants the weights of one dtype in a group of their own
    sharded: Any = fully_shard(network, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return sharded  # type: ignore[no-any-return]


#: The script's own 16-bit weights become float32 under a plan that stores float32.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "fsdp2": shards,  # first: what FSDP2 gathers for the very first backward pass is freed after it
    "ddp": lambda: DistributedDataParallel(model()),
    "ddp, 16-bit weights": lambda: DistributedDataParallel(model(torch.bfloat16)),
    "fsdp2, 16-bit weights": lambda: shards(torch.bfloat16),
}


def train(network: nn.Module, mode: str, rank: int) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    moved = []
    for step in range(STEPS):
        inputs = torch.randn(16, 8, generator=generator)
        target = inputs.norm(dim=1, keepdim=True)
        if mode == "overflow" and step == BAD_STEP and rank == 1:
            inputs[0, 0] = 1e6
        loss = nn.functional.mse_loss(network(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        before = weights(network)
        optimizer.step()
        moved.append(before != weights(network))
    return {"moved": moved, "weights": weights(network)}


def weights(network: nn.Module) -> str:
    """Returns a digest of all weights, gathered where they are sharded."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        whole: Any = parameter.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        digest.update(whole.float().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
