# SPDX-License-Identifier: Apache-2.0
"""The two sides that are compared: the rehearsal on CPU tensors, and what is real."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.products import MatrixUnits
from floatwise.torch.cuda_policy import CudaPolicy

__all__ = ["CudaSide", "FakeCudaSide", "NativeSide", "Rehearsal", "Side", "real_side"]

T = TypeVar("T")


class Side:
    """Where a model or an operator runs, and what is open meanwhile.

    Attributes:
      name: For tables.
      device: Of its tensors.
    """

    name = ""
    device = "cpu"

    def holding(self) -> AbstractContextManager[Any]:
        """Open around everything that is run on this side, the backward pass included."""
        return ExitStack()

    def region(self, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
        """Returns autocast for this side's device."""
        return torch.autocast(self.device, dtype=dtype, enabled=enabled)

    def place(self, values: T) -> T:
        """Returns copies of the tensors in nested lists and tuples, on this side's device."""
        placed: T = tree_map_only(Tensor, lambda t: t.detach().clone().to(self.device), values)
        return placed

    def model(self, model: nn.Module) -> nn.Module:
        """Returns a copy of a model, on this side's device."""
        return copy.deepcopy(model).to(self.device)


class Rehearsal(Side):
    """CPU tensors under CUDA's policy, 16-bit products as matrix units compute them."""

    name = "rehearsal"

    def holding(self) -> AbstractContextManager[Any]:  # noqa: D102
        stack = ExitStack()
        stack.enter_context(CudaPolicy())
        stack.enter_context(CudaSpecials())
        stack.enter_context(MatrixUnits([torch.float16, torch.bfloat16]))
        return stack


class NativeSide(Side):
    """CPU tensors under CUDA's policy, 16-bit products by PyTorch's own kernels: real numbers, without a GPU."""

    name = "PyTorch's CPU kernels"

    def holding(self) -> AbstractContextManager[Any]:  # noqa: D102
        stack = ExitStack()
        stack.enter_context(CudaPolicy())
        stack.enter_context(CudaSpecials())
        return stack


class CudaSide(Side):
    """CUDA tensors, and nothing of Floatwise."""

    name = "CUDA"
    device = "cuda"


class FakeCudaSide(Side):
    """CUDA's own autocast, which every build of PyTorch has, on CUDA tensors without elements: dtypes of results only.

    In builds without CUDA there is no backward pass, and no indexing.
    """

    name = "CUDA's autocast on fake tensors"
    device = "cuda"

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    def holding(self) -> AbstractContextManager[Any]:  # noqa: D102
        stack = ExitStack()
        stack.enter_context(self._mode)
        stack.enter_context(torch.no_grad())
        return stack

    @contextmanager
    def region(self, dtype: torch.dtype, enabled: bool = True) -> Iterator[None]:
        """Autocast by its switches: `torch.autocast` refuses to open where there is no device."""
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            torch.clear_autocast_cache()

    def place(self, values: T) -> T:  # noqa: D102
        placed: T = tree_map_only(Tensor, self._fake, values)
        return placed

    def _fake(self, tensor: Tensor) -> Tensor:
        with self._mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")


def real_side(device: str) -> Side:
    """Returns the side that trains and computes for real: CUDA, or the CPU's own kernels."""
    return CudaSide() if device == "cuda" else NativeSide()
