# SPDX-License-Identifier: Apache-2.0
"""A model, its optimizer and a batch as fake tensors: their shapes and formats, and no memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.optim import Optimizer

from floatwise.plan import Plan
from floatwise.torch import MasterWeights
from floatwise.torch.stored_weights import stored_formats

__all__ = ["FakeTraining", "fake_training"]


@dataclass
class FakeTraining:
    """What trains, as fake tensors.

    Attributes:
      mode: Active while anything is done with the rest.
      model: Its weights in the formats that the plan stores them in.
      optimizer: As it is before its first step.
      inputs: The batch.
      stored: The parameters that the plan stores in 16 bits.
    """

    mode: FakeTensorMode
    model: nn.Module
    optimizer: Optimizer
    inputs: tuple[Any, ...]
    stored: list[Tensor]


def fake_training(model: nn.Module, optimizer: Optimizer, inputs: tuple[Any, ...], plan: Plan) -> FakeTraining:
    """Returns fake copies that belong together; what is given stays as it is.

    Tensors on the `meta` device, and a model's fake tensors, become fake tensors of a CPU or of their own device.

    Args:
      model: The model, real or not, with float32 weights or weights as the plan stores them.
      optimizer: Its optimizer.
      inputs: A batch, real or not.
      plan: Says which weights are stored in 16 bits.
    """
    inner = model
    for wrapper in ("module", "_orig_mod"):  # DistributedDataParallel, torch.compile
        if isinstance(model, nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
            inner = getattr(inner, wrapper, inner)
    given = optimizer.optimizer if isinstance(optimizer, MasterWeights) else optimizer
    mode = next((t.fake_mode for t in _tensors(inner) if isinstance(t, FakeTensor)), None) or FakeTensorMode()
    formats = {id(parameter): dtype for parameter, dtype in stored_formats(inner, plan, None)}
    memo: dict[int, Any] = {}
    stored: list[Tensor] = []
    with mode:
        for tensor in _tensors(inner):
            fake = _fake(tensor, formats.get(id(tensor), tensor.dtype))
            memo[id(tensor)] = fake
            if id(tensor) in formats:
                stored.append(fake)
        memo |= {id(t): _fake(t, t.dtype) for t in inputs if isinstance(t, Tensor)}
    with FakeCopyMode(mode):
        copied, its_optimizer, batch = copy.deepcopy((inner, given, inputs), memo)
    its_optimizer.state.clear()
    return FakeTraining(mode, copied, its_optimizer, batch, stored)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _fake(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    device = "cpu" if tensor.is_meta and not isinstance(tensor, FakeTensor) else tensor.device
    plain = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
    return nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else plain
