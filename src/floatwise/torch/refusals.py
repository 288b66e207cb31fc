# SPDX-License-Identifier: Apache-2.0
"""Models, optimizers and limits that `prepare` refuses, each with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError, PlanError
from floatwise.plan import Plan

__all__ = ["check_limits", "check_optimizers", "check_weights", "device_type_of"]

_SIXTEEN_BIT = (torch.float16, torch.bfloat16)


def device_type_of(model: nn.Module) -> str:
    """Returns the device type of the model's parameters.

    Raises:
      BadInputError: It has none, or they are still on the meta device.
    """
    types = [p.device.type for p in model.parameters()]
    if not types:
        raise BadInputError(f"got {type(model).__name__}, a model without parameters: there is nothing to train")
    if "meta" in types:
        raise BadInputError("got a model on the meta device; give its weights memory first, with model.to_empty(...)")
    return types[0]


def check_weights(model: nn.Module, plan: Plan) -> None:
    """Raises PlanError when a trainable weight is stored in 16 bits and the plan says float32."""
    low = [(n, p.dtype) for n, p in model.named_parameters() if p.requires_grad and p.dtype in _SIXTEEN_BIT]
    if low:
        name, dtype = low[0]
        raise PlanError(
            f"got {len(low)} trainable weights in 16 bits ({name!r} is {str(dtype).removeprefix('torch.')}) "
            f"with a plan of recipe {plan.recipe!r}, whose param_dtype is 'float32'; call model.float() "
            "before the optimizer is made. The plan still computes as its compute_dtype says; frozen weights "
            "may stay as they are"
        )


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raises BadInputError when there is no optimizer, or one that holds none of the model's parameters."""
    if not optimizers:
        raise BadInputError("got no optimizer; give the one that steps the model's parameters, or all of them")
    own = {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise BadInputError(f"got {type(optimizer).__name__} as an optimizer; expected a torch.optim.Optimizer")
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise BadInputError(
                f"got {type(optimizer).__name__}, none of whose parameters are the model's; make it from "
                "model.parameters() of this very model. To train several models together, prepare "
                "nn.ModuleList([...]) of them"
            )


def check_limits(clip_norm: float | None, clip_value: float | None) -> None:
    """Raises BadInputError for a limit that is not positive, and for both limits at once."""
    if clip_norm is not None and clip_value is not None:
        raise BadInputError(f"got clip_norm {clip_norm!r} and clip_value {clip_value!r}; give one of them")
    for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None and not limit > 0:
            raise BadInputError(f"got {name} {limit!r}; expected a positive number, or None not to clip")
