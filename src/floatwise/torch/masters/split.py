# SPDX-License-Identifier: Apache-2.0
"""A float32 as two halves of 16 bits: the nearest bfloat16, and the rest as a signed number of float32's steps.

With `bits` the float32's pattern as an integer, `high = (bits + 0x8000) >> 16` and `low = bits - (high << 16)`, which
is from -0x8000 to 0x7fff. Adding the halves up gives `bits` back exactly, for every number, -0 and infinity. `high` is
the nearest bfloat16; of two that are equally near it is the one farther from zero. Rounding such ties to even, as
PyTorch does, cannot be undone: 65,537 float32 values round to each even bfloat16, one more than 16 bits can tell apart.

A NaN stays a NaN in both forms, though not the same one: some would round to zero, as CUDA's own, 0x7fffffff.

A weight that was changed from elsewhere, knowing nothing of the lower half, is that weight to within half a step of
bfloat16 when it is joined. A zero is in need of care: there is nothing below it to subtract a negative half from.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from floatwise.torch.masters.kernel import Kernel, load_kernel

__all__ = ["join_halves", "kernel_in_use", "quiet_nans", "split_halves", "widen"]


def join_halves(out: Tensor, high: Tensor, low: Tensor) -> None:
    """Writes into float32 `out` [n] the values of bfloat16 `high` [n] and int16 `low` [n]."""
    kernel = kernel_in_use() if out.device.type == "cpu" else None
    if kernel is None:
        _join(out, high, low)
    else:
        kernel.join(out, high, low)


def split_halves(value: Tensor, high: Tensor, low: Tensor) -> None:
    """Writes float32 `value` [n] into bfloat16 `high` [n] and int16 `low` [n]; `value` is used up."""
    kernel = kernel_in_use() if value.device.type == "cpu" else None
    if kernel is None:
        _split(value, high, low)
    else:
        kernel.split(value, high, low)


def widen(out: Tensor, value: Tensor) -> None:
    """Writes `value` [n], of any floating-point format, into float32 `out` [n]."""
    kernel = kernel_in_use() if out.device.type == "cpu" and value.dtype is torch.bfloat16 else None
    if kernel is None:
        out.copy_(value)
    else:
        kernel.widen(out, value)


def quiet_nans(value: Tensor) -> None:
    """Gives every NaN in float32 `value` the pattern 0x7fc00000."""
    value.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=-math.inf)


@cache
def kernel_in_use() -> Kernel | None:
    """Returns the compiled kernel, if this machine has one that gives what PyTorch's operators give."""
    kernel = load_kernel()
    return kernel if kernel is not None and _agrees(kernel) else None


def _join(out: Tensor, high: Tensor, low: Tensor) -> None:
    least = high.view(torch.int16).bitwise_and(0x7FFF).clamp_(max=1).mul_(-(2**15))  # 0 where `high` is zero
    out.copy_(high)
    out.view(torch.int32).add_(torch.maximum(low, least))


def _split(value: Tensor, high: Tensor, low: Tensor) -> None:
    quiet_nans(value)
    bits = value.view(torch.int32)
    low.copy_(bits)  # the lower 16 bits
    bits.sub_(low)  # what is left is a bfloat16's pattern
    high.copy_(value)


def _agrees(kernel: Kernel) -> bool:
    # Every upper half with lower halves around the tie.
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int32).mul_(2**16)
    value = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(torch.float32)
    results = []
    for split, join, widened in ((kernel.split, kernel.join, kernel.widen), (_split, _join, Tensor.copy_)):
        # Not empty: memory that was used before may hold the right answers.
        high, low = torch.zeros_like(value, dtype=torch.bfloat16), torch.zeros_like(value, dtype=torch.int16)
        joined, negative, wide = torch.zeros_like(value), torch.zeros_like(value), torch.zeros_like(value)
        split(value.clone(), high, low)
        join(joined, high, low)
        join(negative, high, torch.full_like(low, -1))
        widened(wide, high)
        results.append((high, low, joined, negative, wide))
    return all(map(_same, *results))


def _same(left: Tensor, right: Tensor) -> bool:
    bits = torch.int32 if left.element_size() == 4 else torch.int16
    equal = left.view(bits) == right.view(bits)
    return bool((equal | (left.isnan() & right.isnan()) if left.is_floating_point() else equal).all())
