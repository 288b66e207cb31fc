# SPDX-License-Identifier: Apache-2.0
"""The norm of gradients and their clipping, in float32, also where they are sharded, sparse or 16-bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from floatwise.errors import BadInputError

__all__ = ["check_limits", "clip_by_norm", "clip_by_value", "gradient_norm"]

# Added to the norm before dividing by it, as `torch.nn.utils.clip_grads_with_norm_` does (torch 2.6 to 2.13).
_EPSILON = 1e-6

_LOW = (torch.float16, torch.bfloat16)


def check_limits(clip_norm: float | None, clip_value: float | None, norm_type: float) -> None:
    """Raises BadInputError for a limit or an order that is not positive, and for both limits at once."""
    if clip_norm is not None and clip_value is not None:
        raise BadInputError(
            f"got clip_norm {clip_norm!r} and clip_value {clip_value!r}, whose result depends on which comes first; "
            "give one of them, and for the other call precision.unscale() before step() and clip the gradients there"
        )
    for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None and not limit > 0:
            raise BadInputError(f"got {name} {limit!r}; expected a positive number, or None not to clip")
    if not norm_type > 0:
        raise BadInputError(f"got norm_type {norm_type!r}; expected a positive number, such as 2.0 or math.inf")


def gradient_norm(parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
    """Returns the norm of all gradients taken as one vector, a number on the first gradient's device.

    Float32 gradients on one device give what `torch.nn.utils.get_total_norm` gives, bit for bit. More cases work:
    gradients of 16 bits, whose norm torch rounds to 16 bits (infinite above 65504 in float16); sparse ones; and
    DTensors of several meshes or placements, also beside plain tensors. The norm of DTensors is that of whole
    gradients and the same on every rank, so every rank has to call this.

    Args:
      parameters: Those without a gradient are passed over. Sparse gradients are coalesced.
      norm_type: The order: 2.0 is the root of the sum of squares, `math.inf` the largest magnitude.
    """
    return _total_norm(_groups(parameters), norm_type)


def _total_norm(groups: Iterable[list[Tensor]], norm_type: float) -> Tensor:
    totals = [_norm_of(group, norm_type) for group in groups]
    if len(totals) < 2:
        return totals[0] if totals else torch.tensor(0.0)
    device, dtype = totals[0].device, max((t.dtype for t in totals), key=lambda d: d.itemsize)
    return _combined([t.to(device, dtype) for t in totals], norm_type)


def clip_by_norm(parameters: Iterable[Tensor], limit: float, norm_type: float = 2.0) -> float:
    """Multiplies all gradients by one factor, so that their norm is at most `limit`.

    Nothing is clipped when the norm is not finite: the factor would be zero or NaN. Waits for the device.

    Args:
      parameters: Those whose gradients are clipped.
      limit: The largest norm allowed; `math.inf` only measures.
      norm_type: See `gradient_norm`.

    Returns:
      The norm before clipping.
    """
    groups = _groups(parameters)
    total = _total_norm(groups, norm_type)
    norm = float(total)
    if math.isfinite(norm):
        factor = torch.clamp(limit / (total + _EPSILON), max=1.0)
        for group in groups:
            torch._foreach_mul_(group, factor.to(group[0].device))
    return norm


def clip_by_value(parameters: Iterable[Tensor], limit: float) -> None:
    """Limits every element of every gradient to the range from `-limit` to `limit`."""
    for group in _groups(parameters):
        torch._foreach_clamp_min_(group, -limit)
        torch._foreach_clamp_max_(group, limit)


def _norm_of(group: list[Tensor], norm_type: float) -> Tensor:
    if group[0].dtype in _LOW:
        norms = torch._foreach_norm(group, norm_type, dtype=torch.float32)
        total = _combined(norms, norm_type)
    else:
        total = nn.utils.get_total_norm(group, norm_type)
    full: Any = getattr(total, "full_tensor", None)  # a DTensor's: what every rank has a part of
    if full is not None:
        total = full()
    return total


def _combined(norms: Sequence[Tensor], norm_type: float) -> Tensor:
    combined: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), norm_type)
    return combined


def _groups(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Returns the gradients in lists that one foreach call can take."""
    groups: dict[Any, list[Tensor]] = {}
    for gradient in _gradients(parameters):
        kind: tuple[Any, ...] = (gradient.device, gradient.dtype)
        if type(gradient) is not Tensor:
            kind += (getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None))
        groups.setdefault(kind, []).append(gradient)
    return list(groups.values())


def _gradients(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # an index that occurs twice has two values to be added
            yield parameter.grad._values()
        else:
            yield parameter.grad
