# SPDX-License-Identifier: Apache-2.0
"""A plan and the wrappers that distribute a model over processes: DDP, FSDP2 and FSDP1."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import PlanError
from floatwise.plan import Plan
from floatwise.torch.distributed.ddp import sum_gradients_in
from floatwise.torch.distributed.fsdp2 import ShardedFormats
from floatwise.torch.distributed.shards import sharded_states
from floatwise.torch.plan_support import TORCH_DTYPES

__all__ = ["DistributedFormats"]


class DistributedFormats:
    """A plan's formats on what goes between processes: gradients of DDP and FSDP2, and the weights FSDP2 gathers.

    Args:
      plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._sharded = ShardedFormats(plan)
        self._replicated: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

    def apply(self, model: nn.Module, paths: Mapping[str, nn.Module] | None = None) -> bool:
        """Sets the formats of all wrappers in `model`; without any, nothing happens.

        Call it on every rank, not between a forward pass and its backward pass.

        Args:
          model: The model.
          paths: The model's modules by path; by default `module_paths(model)`.

        Returns:
          True when the model is distributed by one of these.

        Raises:
          PlanError: A wrapper has formats of its own that cannot be replaced; the message says what to write.
        """
        dtype = TORCH_DTYPES[self.plan.reductions.reduce_dtype]
        has_wrapper = next(sharded_states(model), None) is not None
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                sum_gradients_in(module, dtype)
                self._replicated.add(module)
                has_wrapper = True
            elif _is_fsdp1(module):
                _check_fsdp1(module, dtype)
                has_wrapper = True
        self._sharded.apply(model, paths)
        return has_wrapper

    def restore(self) -> None:
        """Gives FSDP2's modules back the formats they had, and lets DDP sum gradients as they are."""
        self._sharded.restore()
        for module in self._replicated:
            sum_gradients_in(module, None)


def _is_fsdp1(module: nn.Module) -> bool:
    # Who has wrapped a model has loaded this module, which takes half as long as torch itself.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def _check_fsdp1(module: Any, dtype: torch.dtype) -> None:
    """Raises PlanError when FSDP1 casts or sums otherwise than the plan says: it cannot be changed afterwards."""
    own = module.mixed_precision
    asked = {name: getattr(own, name) for name in ("param_dtype", "reduce_dtype", "buffer_dtype")}
    casts = any(asked[name] not in (None, torch.float32) for name in ("param_dtype", "buffer_dtype"))
    if casts or (own.reduce_dtype or own.param_dtype or torch.float32) is not dtype:
        told = ", ".join(f"{name}={_name(value)}" for name, value in asked.items() if value is not None)
        instead = "None" if dtype is torch.float32 else f"MixedPrecision(reduce_dtype=torch.{_name(dtype)})"
        raise PlanError(
            f"got a FullyShardedDataParallel with MixedPrecision({told}), which stays as it was made, while the plan "
            f"casts in products only and sums gradients in {_name(dtype)!r}; wrap the model with "
            f"mixed_precision={instead}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
