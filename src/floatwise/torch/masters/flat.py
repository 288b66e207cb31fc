# SPDX-License-Identifier: Apache-2.0
"""Tensors as rows of numbers: the elements that this process holds, in the order in which memory holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["cast", "flat", "is_dense", "is_sharded", "laid_out_as", "local", "replace_data", "sharded_as"]


def is_sharded(tensor: Tensor) -> bool:
    """Returns whether a tensor is a DTensor."""
    return isinstance(getattr(tensor, "_local_tensor", None), Tensor)


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a DTensor that this process holds; other tensors as they are. No gradient flows."""
    part: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part.detach()


def sharded_as(like: Tensor, part: Tensor) -> Tensor:
    """Returns `part` as what `like` is: a DTensor of the same mesh and placements, or itself."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    whole: Any = like
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def replace_data(parameter: Tensor, value: Tensor) -> None:
    """Gives a parameter other values, of any format and sharded like it; it stays the same object."""
    parameter.data = value
    if is_sharded(parameter):  # `data` of a DTensor stops at the DTensor itself
        sharded: Any = parameter
        sharded._local_tensor, sharded._spec = value._local_tensor, value._spec  # type: ignore[attr-defined]


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a copy in another format. A tapped script's own `Tensor.to` may be redirected; this is not."""
    return torch.empty_like(tensor, dtype=dtype).copy_(tensor)


def is_dense(tensor: Tensor) -> bool:
    """Returns whether the elements fill a stretch of memory, each place once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """Returns a view of shape [numel] of a dense tensor, in memory order."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """Returns `tensor`, copied where its elements lie in another order than those of `like`."""
    if tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous()):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
