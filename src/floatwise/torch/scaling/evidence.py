# SPDX-License-Identifier: Apache-2.0
"""What a step shows about the loss scale beside overflow: the largest gradient, and whether the loss was finite.

All ranks must see the same, or their scales would part. One number can say it all, so that one reduction is enough:
the magnitude matters only without an overflow, and the loss only with one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from floatwise.torch.distributed.agreement import found_inf_everywhere, unscale_gradients

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ScaleEvidence", "heard_everywhere", "largest_magnitude", "largest_of", "local_values"]

# Above every magnitude that is reported: the two kinds of overflow.
_OVERFLOW = 2.0**126
_OVERFLOW_OF_BAD_LOSS = 2.0**127

Found = dict[torch.device, Tensor]


class ScaleEvidence:
    """What was seen since the last update.

    Args:
      measures: False leaves the gradients unmeasured.
      process_group: The ranks that must see the same; None for all.
    """

    def __init__(self, measures: bool, process_group: ProcessGroup | None = None) -> None:
        self._measures = measures
        self._group = process_group
        self.clear()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._loss: Tensor | None = None
        self._loss_bad: Tensor | None = None
        self._largest: dict[int, Found] = {}

    def see_loss(self, outputs: Any) -> None:
        """Notes a loss, or several, nested as they may be."""
        if (loss := _total_of(outputs)) is not None:
            self._loss = loss if self._loss is None else self._loss + loss.to(self._loss.device, non_blocking=True)

    def see_largest(self, key: int, largest: Tensor) -> None:
        """Notes the largest magnitude of a scaled gradient of the optimizer `key`."""
        self._largest[key] = {largest.device: largest}

    def unscale(self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Found:
        """Measures and unscales the gradients and returns, for all ranks, whether one is not finite.

        A collective call when torch.distributed is initialised.
        """
        largest = _largest_gradients(optimizer) if self._measures else {}
        found = unscale_gradients(optimizer, inv_scale, found_inf, allow_fp16)
        if not (dist.is_available() and dist.is_initialized()):
            self._largest[id(optimizer)] = largest
            return found
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        heard = found_inf_everywhere(self._said(found, largest), parameters, self._group)
        self._largest[id(optimizer)] = {d: torch.where(v >= _OVERFLOW, 0.0, v) for d, v in heard.items()}
        for value in heard.values():
            bad = (value >= _OVERFLOW_OF_BAD_LOSS).float()
            self._loss_bad = bad if self._loss_bad is None else torch.maximum(self._loss_bad.to(bad.device), bad)
        return {device: (value >= _OVERFLOW).float() for device, value in heard.items()}

    def largest(self, device: torch.device) -> Tensor:
        """Returns the largest magnitude of a scaled gradient, float32; 0 when none was measured."""
        values = [value for by_device in self._largest.values() for value in by_device.values()]
        return largest_of(values, device) if values else torch.zeros((), device=device)

    def loss_bad(self, device: torch.device) -> Tensor:
        """Returns a number that is not 0 when a loss was not finite."""
        if self._loss_bad is not None:
            return self._loss_bad.to(device, non_blocking=True)
        if self._loss is None:
            return torch.zeros((), device=device)
        return (~self._loss.isfinite()).float().to(device, non_blocking=True)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_group": None, "_loss": None, "_loss_bad": None, "_largest": {}}

    def _said(self, found: Found, largest: Found) -> Found:
        said = {}
        for device, finding in found.items():
            overflow = torch.where(self.loss_bad(device) > 0, _OVERFLOW_OF_BAD_LOSS, _OVERFLOW)
            magnitude = largest.get(device, torch.zeros((), device=device)).clamp(max=_OVERFLOW / 2)
            said[device] = torch.where(finding > 0, overflow, magnitude)
        return said


def local_values(gradient: Tensor) -> Tensor:
    """Returns the numbers of a gradient that this rank stores."""
    if gradient.is_sparse:
        return gradient._values()
    to_local: Any = getattr(gradient, "to_local", None)  # a DTensor has it
    return gradient if to_local is None else to_local()


def largest_of(values: list[Tensor], device: torch.device) -> Tensor:
    """Returns the largest of single numbers, on a device; the host does not wait."""
    if len(values) == 1:
        return values[0].to(device, non_blocking=True)
    return torch.stack([value.to(device, non_blocking=True) for value in values]).amax()


def _largest_gradients(optimizer: Optimizer) -> Found:
    """Returns the largest magnitude among an optimizer's gradients by device, float32; of local shards only.

    Not finite when a gradient is not. Each gradient is read once and the host does not wait. Entries of sparse
    gradients with the same index are not added up.
    """
    by_kind: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and (values := local_values(parameter.grad.detach())).numel():
                by_kind[values.device, values.dtype].append(values)
    largest: Found = {}
    for (device, _), group_values in by_kind.items():
        amax = largest_magnitude(group_values).float()
        largest[device] = torch.maximum(largest[device], amax) if device in largest else amax
    return largest


def _total_of(outputs: Any) -> Tensor | None:
    """Returns the sum of losses, nested as they may be; it is finite when all of them are. None without a tensor."""
    if isinstance(outputs, Tensor):
        values = local_values(outputs.detach()).float()
        return values.reshape(()) if values.numel() == 1 else values.sum()
    if not isinstance(outputs, list | tuple):
        return None  # an iterator, which can be read once only
    totals = [total for total in map(_total_of, outputs) if total is not None]
    return torch.stack([total.to(totals[0].device, non_blocking=True) for total in totals]).sum() if totals else None


def heard_everywhere(found_inf: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both numbers as all ranks together have them: a collective call when torch.distributed is initialised.

    A magnitude that is not finite counts as a finding: NaN would be lost in a maximum.
    """
    device = found_inf.device
    said = torch.where((found_inf > 0) | ~largest.isfinite(), _OVERFLOW, largest.clamp(max=_OVERFLOW / 2))
    heard = found_inf_everywhere({device: said}, ())[device]
    return (heard >= _OVERFLOW).float(), torch.where(heard >= _OVERFLOW, 0.0, heard)


def largest_magnitude(values: list[Tensor]) -> Tensor:
    """Returns the largest magnitude in tensors of one device and format; not finite when one of them is not."""
    if values[0].device.type == "cpu":
        # 17 times as fast as an infinity norm there (aminmax 6.7, vector_norm 0.4 billion elements a second).
        ends = [end for tensor in values for end in torch.aminmax(tensor)]
        return torch.stack(ends).abs().amax()
    return torch.stack(torch._foreach_norm(values, float("inf"))).amax()
