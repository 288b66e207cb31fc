# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel under a plan: the format gradients are summed in, and weights whose dtype changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from floatwise.errors import PlanError

__all__ = ["rebuild_reducer", "sum_gradients_in"]

#: PyTorch's own hooks that sum in another format, by name (torch/distributed/algorithms/ddp_comm_hooks).
_COMPRESSED = {"bf16_compress_hook": torch.bfloat16, "fp16_compress_hook": torch.float16}


def sum_gradients_in(ddp: DistributedDataParallel, dtype: torch.dtype | None) -> None:
    """Makes DDP sum gradients over processes in `dtype`; what arrives in `.grad` has the parameters' dtype as ever.

    DDP sums gradients in the dtype they have. Where that is another, a communication hook divides by the number of
    processes in the wider of both formats, sums in `dtype` and casts back. PyTorch's `bf16_compress_hook` also
    rounds before it divides, and is refused without NCCL. Call it on every rank, before the first backward pass
    or between two. DDP cannot take a hook off; a second call changes the dtype.

    Args:
      ddp: The wrapped model.
      dtype: float32, bfloat16 or float16; None for the one that gradients have, as DDP does by itself.

    Raises:
      PlanError: The gradients have another dtype and the model has a communication hook of its own, of which DDP
        permits one, or a hook of PyTorch's or DDP's `mixed_precision` sums in another dtype.
    """
    if dtype is None:
        for _, state in getattr(ddp, "_comm_hooks", ()):
            if isinstance(state, _Sum):
                state.dtype = None
        return
    name = str(dtype).removeprefix("torch.")
    if ddp.mixed_precision is not None:
        raise PlanError(
            "got a DistributedDataParallel with mixed_precision of its own; the plan casts what products take, so "
            "wrap the model without it"
        )
    for hook, state in getattr(ddp, "_comm_hooks", ()):
        if isinstance(state, _Sum):
            state.dtype = dtype
            return
        hooked = getattr(hook, "__qualname__", repr(hook))
        own = _COMPRESSED.get(hooked)
        if own is dtype:
            return
        if own is not None or _differs(ddp, dtype):
            raise PlanError(
                f"got a DistributedDataParallel with the communication hook {hooked!r}, and DDP permits one, while "
                f"the plan sums gradients in {name!r}; leave the hook out, or write in [reductions] the reduce_dtype "
                "that it sums in"
            )
        return
    if _differs(ddp, dtype):
        ddp.register_comm_hook(_Sum(ddp, dtype), _sum)


def rebuild_reducer(ddp: DistributedDataParallel) -> None:
    """Makes DDP reduce gradients again after its parameters' dtypes have changed in place.

    Changing `parameter.data` to another dtype gives the parameter a new gradient accumulator. DDP's reducer waits at
    the old one: without an error, gradients are no longer summed and the ranks drift apart. This builds the reducer
    anew, as unpickling a DDP does. Communication hooks stay. Call it on every rank, not between a forward pass and
    its backward pass.

    Args:
      ddp: The wrapped model; what it was made with (bucket sizes, ignored parameters, static graph) stays.
    """
    ddp.reducer._remove_autograd_hooks()
    parameters, expects_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expects_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False  # what the first backward pass does in this case
        ddp.reducer._set_static_graph()
        if ddp.logger is not None:
            ddp.logger._set_static_graph()
    for hook, state in ddp._comm_hooks:
        dist._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]


@dataclass
class _Sum:
    """The state of `_sum`: whose gradients, and what they are summed in."""

    ddp: DistributedDataParallel
    dtype: torch.dtype | None


def _sum(state: Any, bucket: Any) -> Any:
    buffer: Tensor = bucket.buffer()
    group, dtype = state.ddp.process_group, state.dtype or buffer.dtype
    # Divided first, as DDP itself does: a sum of float16 may overflow. `copy_` and not `to`, which a tapped script's
    # 16-bit casts go through.
    wide = torch.empty_like(buffer, dtype=torch.promote_types(buffer.dtype, dtype)).copy_(buffer)
    wide.div_(group.size())
    terms = wide if wide.dtype is dtype else torch.empty_like(wide, dtype=dtype).copy_(wide)

    def cast_back(future: Any) -> Tensor:
        return buffer.copy_(future.value()[0])

    return dist.all_reduce(terms, group=group, async_op=True).get_future().then(cast_back)


# DDP wants no annotations or the very classes; ours are their names.
_sum.__annotations__ = {}


def _differs(ddp: DistributedDataParallel, dtype: torch.dtype) -> bool:
    return any(p.requires_grad and p.dtype is not dtype for p in ddp._module_parameters)
