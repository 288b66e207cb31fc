# SPDX-License-Identifier: Apache-2.0
"""The weights of a model in the formats that a plan stores them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import PlanError
from floatwise.plan import Plan
from floatwise.torch.distributed.convert import converting
from floatwise.torch.masters import (
    Float32Checkpoints,
    MasterWeights,
    allow_float32_grad,
    drop_master,
    float32_value,
    give_master,
    raise_grad,
    set_float32_value,
    stored_of,
)
from floatwise.torch.masters.norms import stays_float32
from floatwise.torch.paths import module_paths
from floatwise.torch.plan_support import TORCH_DTYPES
from floatwise.torch.policies import own_policies, policy_of
from floatwise.torch.refusals import has_fsdp1

__all__ = ["Float32View", "StoredWeights", "allow_float32_grad", "raise_grad", "store_weights", "with_masters"]


class StoredWeights:
    """The parameters of a model that a plan stores in 16 bits, each with its master.

    Args:
      model: The model.
      parameters: Those parameters.

    Attributes:
      parameters: Those parameters; none after `restore`.
    """

    def __init__(self, model: nn.Module, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self._model = model
        self._checkpoints = Float32Checkpoints(model) if parameters else None

    def sum_in_float32(self) -> None:
        """Raises gradients that a further backward pass will add to: 16 bits stop growing after some 256 summands.

        A single pass leaves its gradients in 16 bits. Needs torch 2.10; before, they add up as they are.
        """
        for parameter in self.parameters:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                raise_grad(parameter)

    def restore(self) -> None:
        """Stores all of them in float32 again, with their exact values; gradients are dropped."""
        if self._checkpoints is not None:
            self._checkpoints.remove()
        with converting(self._model) as convert:
            for parameter in self.parameters:
                if stored_of(parameter) is not None:
                    value = float32_value(parameter)
                    drop_master(parameter)
                    parameter.grad = None
                    convert(parameter, torch.float32)
                    set_float32_value(parameter, value)
        self.parameters = []


class Float32View:
    """The parameters and buffers of a model, those with masters as their exact float32 values.

    It serves what takes `parameters()` and `buffers()` of a model and cannot mix formats, as PyTorch's
    `AveragedModel.update_parameters`.

    Args:
      model: The model, which stays as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def parameters(self) -> Iterator[Tensor]:
        """Yields the values in the order of the model's own `parameters`."""
        for parameter in self._model.parameters():
            yield parameter if stored_of(parameter) is None else float32_value(parameter)

    def buffers(self) -> Iterator[Tensor]:
        """Yields the model's buffers."""
        return self._model.buffers()


def store_weights(
    model: nn.Module,
    plan: Plan,
    paths: Mapping[str, nn.Module] | None = None,
    convert: Callable[[Tensor, torch.dtype], Any] | None = None,
    wanted: Callable[[Tensor], bool] | None = None,
) -> StoredWeights:
    """Stores the weights of a model as each module's `param_dtype` says, with masters as `plan.weights` says.

    Frozen weights get masters too: a checkpoint keeps their exact values, and they can be unfrozen. These stay as they
    are: frozen weights that are in 16 bits already; weights that are neither in float32 nor in 16 bits; and those of
    norms with running statistics, whose kernels want float32 beside 16-bit inputs. A weight that several modules share
    is in float32 when one of them says so.

    Args:
      model: The model, its parameters in float32 or in 16 bits already.
      plan: The plan.
      paths: The model's modules by path; by default `module_paths(model)`.
      convert: How to change the format of a parameter, as in `give_master`; by default `converting(model)`.
      wanted: Says of a parameter whether it is to be stored; by default all are.

    Raises:
      PlanError: A part of the model is in FSDP1, whose parameters cannot change their format.
    """
    low = [(p, dtype) for p, dtype in stored_formats(model, plan, paths) if wanted is None or wanted(p)]
    if low and has_fsdp1(model):
        raise PlanError(
            f"got a FullyShardedDataParallel with a plan of recipe {plan.recipe!r}, which stores weights in 16 bits: "
            "FSDP1 keeps its parameters in one piece of memory, whose format stays; wrap the model with "
            "torch.distributed.fsdp.fully_shard"
        )
    with ExitStack() as stack:
        if low and convert is None:
            convert = stack.enter_context(converting(model))
        for parameter, dtype in low:
            give_master(parameter, plan.weights.master, dtype, convert)
    return StoredWeights(model, [parameter for parameter, _ in low])


def with_masters(optimizer: Optimizer, plan: Plan) -> Optimizer:
    """Returns what steps an optimizer's parameters: `MasterWeights` around it where they have masters, else itself."""
    if isinstance(optimizer, MasterWeights):
        return optimizer
    if any(stored_of(p) is not None for group in optimizer.param_groups for p in group["params"]):
        return MasterWeights(optimizer, plan.weights.master)
    return optimizer


def stored_formats(
    model: nn.Module, plan: Plan, paths: Mapping[str, nn.Module] | None
) -> Iterator[tuple[Tensor, torch.dtype]]:
    """Yields the parameters to be stored in 16 bits."""
    modules = module_paths(model) if paths is None else paths
    policies = own_policies(plan, modules)
    chosen: dict[int, tuple[Tensor, torch.dtype]] = {}
    for path, module in modules.items():
        dtype = TORCH_DTYPES[policy_of(path, plan, modules, policies).param_dtype]
        keeps_float32 = dtype is torch.float32 or stays_float32(module)
        for parameter in module.parameters(recurse=False):
            if keeps_float32:
                chosen[id(parameter)] = (parameter, torch.float32)
            else:
                chosen.setdefault(id(parameter), (parameter, dtype))
    yield from ((p, dtype) for p, dtype in chosen.values() if dtype is not torch.float32 and _is_to_store(p))


def _is_to_store(parameter: Tensor) -> bool:
    if parameter.dtype in (torch.bfloat16, torch.float16):
        return parameter.requires_grad or stored_of(parameter) is not None
    return parameter.dtype is torch.float32
