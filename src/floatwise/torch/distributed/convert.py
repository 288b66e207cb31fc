# SPDX-License-Identifier: Apache-2.0
"""Parameters whose dtype changes in place, with what DDP and FSDP2 have to be told about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import PlanError
from floatwise.torch.distributed.ddp import rebuild_reducer
from floatwise.torch.distributed.shards import groups_of, sharded_states, start_again

__all__ = ["convert_parameters", "converting"]


def convert_parameters(model: nn.Module, parameters: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Changes the dtype of parameters in place: see `converting`."""
    with converting(model) as convert:
        for parameter in parameters:
            convert(parameter, dtype)


@contextmanager
def converting(model: nn.Module) -> Iterator[Callable[[Tensor, torch.dtype], None]]:
    """Gives a function that changes the dtype of a parameter in place, plain or sharded.

    The `Parameter` stays the same object, for the optimizer and whoever else holds it, and its gradient is converted
    along. Values are rounded to the nearest, on each rank its own; nothing is communicated. On leaving, DDP's reducer
    is built anew (`rebuild_reducer` says why) and FSDP2 reads the new dtypes, also when the model has run forward
    before. Open it on every rank, not between a forward pass and its backward pass.

    Args:
      model: The model that the parameters are part of; DDP and FSDP2 may be anywhere in it.

    Raises:
      PlanError: On leaving: trainable parameters of one FSDP2 group have different dtypes, which FSDP2 refuses.
    """
    owners: dict[int, tuple[Any, Any]] = {}
    for group in [group for state in sharded_states(model) for group in groups_of(state)]:
        group._to_sharded()  # after a forward pass the model's parameters may be the gathered ones
        owners |= {id(p.sharded_param): (p, group) for p in group.fsdp_params}
    touched: dict[int, Any] = {}
    changed: set[int] = set()

    def convert(parameter: Tensor, dtype: torch.dtype) -> None:
        if parameter.dtype is dtype:
            return
        changed.add(id(parameter))
        sharded, group = owners.get(id(parameter), (None, None))
        with torch.no_grad():
            _convert(parameter, dtype)
            if sharded is not None:
                sharded.reset_sharded_param()
                touched[id(group)] = group

    yield convert
    for group in touched.values():
        _check_group(group, model)
        start_again(group)
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and any(id(p) in changed for p in module._module_parameters):
            rebuild_reducer(module)


def _convert(parameter: Tensor, dtype: torch.dtype) -> None:
    gradient, parameter.grad = parameter.grad, None
    value = _cast(parameter.detach(), dtype)
    # `torch.utils.swap_tensors` would do for a DTensor, but for its refusal of parameters with weak references.
    parameter.data = value
    if _is_dtensor(parameter):
        parameter._local_tensor, parameter._spec = value._local_tensor, value._spec  # type: ignore[attr-defined]
    if gradient is not None:
        parameter.grad = _cast(gradient, dtype)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Not `to`, which a tapped script's 16-bit casts go through.
    cast: Tensor = torch.ops.aten._to_copy.default(tensor, dtype=dtype)
    return cast


def _is_dtensor(tensor: Tensor) -> bool:
    # Who has a DTensor has loaded its module; importing it takes as long as a fifth of torch itself.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _check_group(group: Any, model: nn.Module) -> None:
    trainable = [p.sharded_param for p in group.fsdp_params if p.sharded_param.requires_grad]
    by_dtype = {p.dtype: p for p in trainable}
    if len(by_dtype) < 2:
        return
    names = {id(p): name for name, p in model.named_parameters()}
    told = " and ".join(f"{names.get(id(p), '?')!r} in {str(d).removeprefix('torch.')}" for d, p in by_dtype.items())
    raise PlanError(
        f"got {told} in one FSDP2 group, which wants one dtype; call fully_shard on the modules that stay in float32 "
        "before it is called on the modules around them, so that they are groups of their own"
    )
