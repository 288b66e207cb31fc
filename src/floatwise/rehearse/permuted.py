# SPDX-License-Identifier: Apache-2.0
"""Float32 products whose terms are added in another order: how much float32's own rounding matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PermutedReductions"]

aten = torch.ops.aten


class PermutedReductions(TorchDispatchMode):
    """Permutes the terms that matrix products and convolutions add up, while it is open as a context manager.

    In exact arithmetic nothing would change. What does change is rounding error: as another GPU, another thread count
    or another library version would change it.

    Args:
      seed: Seeds the permutations.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet in (aten.mm, aten.bmm):
            return func(*self._terms(args[0], args[1]), *args[2:], **kwargs)
        if packet in (aten.addmm, aten.baddbmm):
            return func(args[0], *self._terms(args[1], args[2]), *args[3:], **kwargs)
        if packet is aten.convolution and args[8] == 1:
            order = self._order(args[0].shape[1], args[0].device)
            # A transposed convolution has its input channels first.
            weight = args[1].index_select(0 if args[6] else 1, order)
            return func(args[0].index_select(1, order), weight, *args[2:], **kwargs)
        if packet is aten.convolution_backward:
            order = self._order(args[0].shape[0], args[0].device)
            of_input, *others = func(
                args[0].index_select(0, order), args[1].index_select(0, order), *args[2:], **kwargs
            )
            back = torch.argsort(order)
            return (of_input.index_select(0, back) if of_input is not None else None, *others)
        return func(*args, **kwargs)

    def _terms(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        order = self._order(left.shape[-1], left.device)
        return left.index_select(-1, order), right.index_select(-2, order)

    def _order(self, length: int, device: torch.device) -> Tensor:
        return torch.randperm(length, generator=self._generator).to(device)
