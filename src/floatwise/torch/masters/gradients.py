# SPDX-License-Identifier: Apache-2.0
"""Gradients of 16-bit weights: what the optimizer is given, and how they become float32 where they are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from floatwise.errors import BadInputError
from floatwise.torch.masters.flat import cast, is_sharded, laid_out_as, local

__all__ = ["allow_float32_grad", "float32_grad", "forbid_float32_grad", "raise_float16_grad", "raise_grad"]


def float32_grad(parameter: Tensor) -> Tensor | None:
    """Returns the gradient of a parameter in float32, laid out as the parameter; itself where it is so already."""
    grad = None if parameter.grad is None else parameter.grad.detach()
    if grad is None or grad.is_sparse or is_sharded(grad):
        return grad if grad is None or grad.dtype is torch.float32 else grad.to(torch.float32)
    # PyTorch's fused kernels pass over strides (2.13): they take a gradient for one in the parameter's layout.
    grad = laid_out_as(local(parameter), grad)
    return grad if grad.dtype is torch.float32 else cast(grad, torch.float32)


def raise_grad(parameter: Tensor) -> None:
    """Makes the gradient of a 16-bit parameter float32, in its place, where this torch lets the two differ."""
    if parameter.grad is None or parameter.grad.dtype is torch.float32 or not _may_differ():
        return
    grad = float32_grad(parameter)
    parameter.grad = None
    allow_float32_grad(parameter)
    parameter.grad = grad


def raise_float16_grad(parameter: Tensor) -> None:
    """Makes a float16 gradient float32, for it to be unscaled: in float16, what the loss scale saved would vanish.

    Raises:
      BadInputError: This torch does not let a gradient differ from its parameter.
    """
    if parameter.grad is None or parameter.grad.dtype is not torch.float16:
        return
    if not _may_differ():
        raise BadInputError(
            f"got float16 gradients with torch {torch.__version__}, which cannot unscale them in float32; install "
            "torch 2.10 or newer, or store the weights in bfloat16 or float32"
        )
    raise_grad(parameter)


def allow_float32_grad(parameter: Tensor) -> None:
    """Lets a 16-bit parameter have a float32 gradient; before torch 2.10 there is no way to."""
    if _may_differ():
        parameter.grad_dtype = None


def forbid_float32_grad(parameter: Tensor) -> None:
    """Gives a 16-bit parameter without a gradient PyTorch's rule back: its gradient comes in its own format."""
    if _may_differ() and parameter.grad_dtype is not parameter.dtype:
        parameter.grad_dtype = parameter.dtype


def _may_differ() -> bool:
    return hasattr(Tensor, "grad_dtype")
