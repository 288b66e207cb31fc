# SPDX-License-Identifier: Apache-2.0
"""Models, optimizers and closures that `prepare` and `step` refuse, each with what to do instead."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError, PlanError
from floatwise.plan import Plan

__all__ = [
    "as_optimizers",
    "check_closure",
    "check_no_closure",
    "check_optimizers",
    "check_torch",
    "check_weights",
    "chosen_optimizers",
    "device_type_of",
    "has_fsdp1",
    "refuse_clip_norm",
]

_SIXTEEN_BIT = (torch.float16, torch.bfloat16)


def as_optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """Returns the optimizer, or all of them, as a tuple.

    Raises:
      BadInputError: There is none, or something that is no optimizer.
    """
    given = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not given:
        raise BadInputError("got no optimizer; give the one that steps the model's parameters, or all of them")
    for one in given:
        if not isinstance(one, Optimizer):
            raise BadInputError(f"got {type(one).__name__} as an optimizer; expected a torch.optim.Optimizer")
    return given


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
    policies = (plan.policy, *(entry.policy for entry in plan.modules))
    stored = {policy.param_dtype for policy in policies} - {"float32"}
    if stored:
        low = [(n, dtype) for n, dtype in low if str(dtype).removeprefix("torch.") not in stored]
    if low and stored:
        name, dtype = low[0]
        raise PlanError(
            f"got {len(low)} trainable weights in {str(dtype).removeprefix('torch.')} ({name!r} is one) with a plan "
            f"that stores weights in {' and '.join(sorted(stored))}; call model.float() before the optimizer is made, "
            "and the plan stores them"
        )
    if low:
        name, dtype = low[0]
        raise PlanError(
            f"got {len(low)} trainable weights in 16 bits ({name!r} is {str(dtype).removeprefix('torch.')}) "
            f"with a plan of recipe {plan.recipe!r}, whose param_dtype is 'float32'; call model.float() "
            "before the optimizer is made. The plan still computes as its compute_dtype says; frozen weights "
            "may stay as they are"
        )


def check_torch(plan: Plan) -> None:
    """Raises PlanError when this torch cannot keep float32 gradients of the plan's float16 weights."""
    policies = (plan.policy, *(entry.policy for entry in plan.modules))
    if any(policy.param_dtype == "float16" for policy in policies) and not hasattr(torch.Tensor, "grad_dtype"):
        raise PlanError(
            f"got a plan of recipe {plan.recipe!r} with float16 weights and torch {torch.__version__}, which cannot "
            "unscale their gradients; use torch 2.10 or later, or 'fp16-mixed'"
        )


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raises BadInputError when an optimizer holds none of the model's parameters."""
    own = {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise BadInputError(
                f"got {type(optimizer).__name__}, none of whose parameters are the model's; make it from "
                "model.parameters() of this very model. To train several models together, prepare "
                "nn.ModuleList([...]) of them"
            )


def check_closure(closure: Callable[[], Any], chosen: Sequence[Optimizer], limits: Sequence[float | None]) -> None:
    """Raises BadInputError for a closure that is none, or that cannot go with what else `step` was given."""
    if not callable(closure):
        raise BadInputError(f"got closure {closure!r}; expected a function that computes the loss, or None")
    if len(chosen) != 1:
        raise BadInputError(f"got a closure and {len(chosen)} optimizers; name one: step(closure=..., optimizer=...)")
    if any(limit is not None for limit in limits):
        raise BadInputError(
            "got a closure and a limit to clip at, but the gradients are used as the closure leaves them; clip inside "
            "it, which a plan without loss scale allows: torch.nn.utils.clip_grad_norm_(model.parameters(), ...)"
        )


def check_no_closure(chosen: Sequence[Optimizer]) -> None:
    """Raises BadInputError when an optimizer cannot step without a closure."""
    for optimizer in chosen:
        if _needs_closure(optimizer):
            raise BadInputError(
                f"{type(optimizer).__name__} evaluates the loss several times; give step(closure=...) a function that "
                "zeroes the gradients, computes the loss, calls precision.backward(loss) and returns the loss"
            )


def chosen_optimizers(
    chosen: Optimizer | Sequence[Optimizer] | None, given: Sequence[Optimizer], stepped: Sequence[Optimizer]
) -> tuple[Optimizer, ...]:
    """Returns those of `stepped` that the caller means, by what was given to `prepare` or by what steps for it.

    Raises:
      BadInputError: One of them is neither.
    """
    if chosen is None:
        return tuple(stepped)
    by_id = {id(own): optimizer for own, optimizer in zip((*given, *stepped), (*stepped, *stepped), strict=True)}
    wanted = (chosen,) if isinstance(chosen, Optimizer) else tuple(chosen)
    unknown = [type(o).__name__ for o in wanted if id(o) not in by_id]
    if unknown or not wanted:
        what = f"{unknown[0]}, an optimizer that was" if unknown else "no optimizer of those that were"
        raise BadInputError(f"got {what} not given to prepare; give one of the {len(given)} that were, or None for all")
    return tuple(dict.fromkeys(by_id[id(o)] for o in wanted))


def has_fsdp1(model: nn.Module) -> bool:
    """Returns whether a part of the model is in FSDP1, whose gradients are shards that look like whole ones."""
    module = sys.modules.get("torch.distributed.fsdp")  # whoever has such a model has loaded it
    return module is not None and any(isinstance(m, module.FullyShardedDataParallel) for m in model.modules())


def refuse_clip_norm() -> NoReturn:
    """Raises the BadInputError for a norm of shards."""
    raise BadInputError(
        "got clip_norm with a model in FullyShardedDataParallel, which alone knows the norm of its shards; call "
        "precision.unscale(), then model.clip_grad_norm_(...), and precision.step() without clip_norm; or wrap the "
        "model with torch.distributed.fsdp.fully_shard"
    )


def _needs_closure(optimizer: Optimizer) -> bool:
    own: Optimizer = getattr(optimizer, "inner", optimizer)  # master weights step any optimizer
    return _requires_closure(type(own).step)


@cache
def _requires_closure(step: Callable[..., Any]) -> bool:
    """Returns whether a step cannot be called without one."""
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
