# SPDX-License-Identifier: Apache-2.0
"""One decision for all ranks: a gradient that is not finite anywhere makes every rank skip the step.

Where the finding must be known, and why it is shared with every rank by default:

* Sharded parameters (FSDP, tensor parallel): a rank sees its own shards only.
* Pipeline stages: the loss is scaled on the last one and unscaled on all, so their scales must stay equal.
* DDP: its gradients are equal on all ranks already. This cannot be seen on a parameter, though: FSDP1's are plain
  tensors just like those, and one number per step is cheap.

So the default is the maximum over the default process group, which contains every mesh and group that parameters can
live on; one reduction serves them all. It asks of the ranks what DDP and FSDP ask, too: that all of them step equally
often. Where they do not (ranks that train models of their own), `process_group` names those that step together.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from floatwise.errors import BadInputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

__all__ = ["found_inf_everywhere", "unscale_gradients"]

# Below every finding, so that it is the maximum only when no rank has one.
_NO_GRADIENTS = -1.0


def unscale_gradients(
    optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
) -> dict[torch.device, Tensor]:
    """Multiplies the gradients of an optimizer in place and finds those that are not finite, on this rank alone.

    As `GradScaler._unscale_grads_`, and gradients may be plain tensors and DTensors of any meshes and placements, in
    any order: the local part of each is what is multiplied and inspected. Nothing is communicated, but for DTensor
    gradients that are partial sums: they are summed first, as the optimizer would have to, for a sum of finite terms
    can overflow.

    Args:
      optimizer: Its parameters without a gradient are passed over.
      inv_scale: What to multiply by, a float32 number on any device.
      found_inf: What the finding starts from, a float32 number (0 or 1) on any device; it is not changed.
      allow_fp16: False refuses float16 gradients. `GradScaler` refuses them in `unscale_` and takes them when a fused
        optimizer steps.

    Returns:
      For each device that has gradients a float32 number: 1 when one of them is infinite or NaN, else `found_inf`.

    Raises:
      ValueError: A gradient is float16 and `allow_fp16` is False; the message is `GradScaler`'s.
    """
    by_kind: defaultdict[torch.device, defaultdict[torch.dtype, list[Tensor]]]
    by_kind = defaultdict(lambda: defaultdict(list))
    found = {}
    raise_gradients = getattr(optimizer, "raise_gradients", None)
    if raise_gradients is not None:  # of `MasterWeights`: float16 gradients become float32
        raise_gradients()
    with torch.no_grad():
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                if parameter.grad.dtype == torch.float16 and not allow_fp16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                values = _local_values(parameter)
                by_kind[values.device][values.dtype].append(values)
        for device, by_dtype in by_kind.items():
            found[device] = found_inf.to(device, copy=True)
            inverse = inv_scale.to(device)
            for gradients in by_dtype.values():
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found[device], inverse)
    return found


def found_inf_everywhere(
    found: dict[torch.device, Tensor], parameters: Iterable[Tensor], process_group: ProcessGroup | None = None
) -> dict[torch.device, Tensor]:
    """Returns the largest finding of all ranks, on the devices of this one's; a collective call.

    One number is reduced, on the device that the parameters and the group share. The host waits for a device only
    on a rank without a finding of its own. A rank that does not call this keeps the others waiting until the group's
    timeout.

    Args:
      found: Findings of this rank by device, float32 numbers from 0 (all gradients were finite) on. Empty when it has
        no gradients: it then takes part with none and learns what the others found.
      parameters: The parameters whose step is decided; all those of the optimizer, whether they have a gradient on
        this rank or not.
      process_group: The ranks that decide together; each calls this equally often. Default: all ranks (the module's
        text says why). A group of one rank (`new_group([rank], use_local_synchronization=True)`) decides alone.

    Returns:
      `found` itself when torch.distributed is not initialised or the group has one rank; empty when no rank has
      gradients.

    Raises:
      BadInputError: This rank is not in the group, or a parameter also lives on ranks that are not.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return found
    parameters = list(parameters)
    if process_group is not None:
        _check_group(process_group, parameters)
    if dist.get_world_size(process_group) == 1:
        return found
    homes = {p.device: None for p in parameters} or dict.fromkeys(found)
    device = _reducing_device(process_group, homes)
    findings = [value.to(device).reshape(()) for value in found.values()]
    largest = torch.stack(findings).amax() if findings else torch.tensor(_NO_GRADIENTS, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=process_group)
    if not found:
        return {} if largest.item() == _NO_GRADIENTS else {next(iter(homes), device): largest}
    return {home: largest.to(home) for home in found}


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _local_values(parameter: Tensor) -> Tensor:
    """Returns the numbers of a gradient that this rank stores: a tensor that shares their memory."""
    gradient = parameter.grad
    assert gradient is not None
    if _is_dtensor(gradient):
        if any(placement.is_partial() for placement in gradient.placements):
            parameter.grad = gradient = _summed(gradient)
        return gradient.to_local()
    if gradient.is_sparse:
        if gradient.dtype == torch.float16:  # adding up entries of the same index can overflow
            parameter.grad = gradient = gradient.coalesce()
        return gradient._values()
    return gradient


def _is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    # Who has a DTensor has loaded its module; importing it takes as long as a fifth of torch itself.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _summed(gradient: DTensor) -> DTensor:
    from torch.distributed.tensor import Replicate

    return gradient.redistribute(placements=[Replicate() if p.is_partial() else p for p in gradient.placements])


def _reducing_device(group: ProcessGroup | None, homes: Iterable[torch.device]) -> torch.device:
    """Returns where the group can reduce: an accelerator of the parameters' first, so that no host waits."""
    able = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    for home in sorted(homes, key=lambda device: device.type == "cpu"):
        if home.type in able:
            return home
    return torch.device(able[0])


def _check_group(group: ProcessGroup, parameters: list[Tensor]) -> None:
    if dist.get_rank(group) < 0:
        raise BadInputError(f"got a process_group without this rank, {dist.get_rank()}; give one that has it")
    ranks = set(dist.get_process_group_ranks(group))
    for mesh in {id(p.device_mesh): p.device_mesh for p in parameters if _is_dtensor(p)}.values():
        outside = set(mesh.mesh.flatten().tolist()) - ranks
        if outside:
            raise BadInputError(
                f"got a process_group of the ranks {sorted(ranks)}, but parameters live on the ranks "
                f"{sorted(outside)}, too; give a group with all of them, or none: then all ranks decide together"
            )
