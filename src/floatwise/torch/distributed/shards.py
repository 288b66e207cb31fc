# SPDX-License-Identifier: Apache-2.0
"""FSDP2 from inside: its states, groups, shards and gathered weights, by names as in torch 2.6 to 2.14."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.tap.tensors import SIXTEEN_BIT

__all__ = [
    "GATHERED",
    "add_in_float32",
    "check_shards",
    "groups_of",
    "sharded_states",
    "shards_of",
    "start_again",
]

#: Set on a gathered parameter once it is settled where its gradients go.
GATHERED = "_floatwise_gathered"


def check_shards(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Raises BadInputError when an optimizer holds gathered weights of FSDP2 in place of their shards.

    After a forward pass the outermost module keeps its weights gathered until the backward pass; an optimizer that is
    made then updates what nobody looks at.
    """
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for group in [group for state in sharded_states(model) for group in groups_of(state)]:
        if any(id(getattr(parameter, "_unsharded_param", None)) in held for parameter in group.fsdp_params):
            raise BadInputError(
                "got an optimizer of gathered weights, which FSDP2 throws away; make the optimizer before the first "
                "forward pass, or call model.reshard() before it is made"
            )


def sharded_states(model: nn.Module) -> Iterator[Any]:
    """Yields the `FSDPState` of every module that `fully_shard` was called on, outer ones first, each once."""
    # Who has sharded a model has loaded this module, which takes half as long as torch itself.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    seen: set[int] = set()
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FSDPModule):  # type: ignore[union-attr]
            state = module._get_fsdp_state()
            if id(state) not in seen:
                seen.add(id(state))
                yield state


def shards_of(model: nn.Module) -> list[Tensor]:
    """Returns the parameters that FSDP2 shards, which the optimizer holds, also while they are gathered."""
    return [p.sharded_param for state in sharded_states(model) for group in groups_of(state) for p in group.fsdp_params]


def groups_of(state: Any) -> list[Any]:
    """Returns the parameter groups of an `FSDPState`: one, none, or in newer torch several."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def start_again(group: Any) -> None:
    """Makes an `FSDPParamGroup` read the dtypes of its parameters and policies anew.

    Nothing happens before its first forward pass, which does the same.
    """
    if not any(hasattr(parameter, "orig_dtype") for parameter in group.fsdp_params):
        return
    group._to_sharded()
    for parameter in group.fsdp_params:
        if hasattr(parameter, "_unsharded_param"):
            del parameter._unsharded_param
        parameter.all_gather_outputs = []
    group._init_mp_dtypes()


def add_in_float32(parameter: Any, group: Any) -> None:
    """Makes the gradients of a gathered parameter go to FSDP2's own accumulator, in float32, where they have to."""
    gathered = parameter._unsharded_param
    if getattr(gathered, GATHERED, False):
        return
    setattr(gathered, GATHERED, True)
    is_mixed = len({p.param_dtype or p.orig_dtype for p in group.fsdp_params}) > 1
    if not (is_mixed and gathered.dtype in SIXTEEN_BIT) and parameter.reduce_dtype not in SIXTEEN_BIT:
        return

    def add(tensor: Tensor) -> None:
        gradient, tensor.grad = tensor.grad, None
        if gradient is None:
            return
        if parameter.unsharded_accumulated_grad is None:
            parameter.unsharded_accumulated_grad = gradient.float()
        else:
            parameter.unsharded_accumulated_grad += gradient

    gathered.requires_grad_(True).register_post_accumulate_grad_hook(add)
