# SPDX-License-Identifier: Apache-2.0
"""The region of code that runs in a plan's formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch._functorch.config

from floatwise.plan import Plan
from floatwise.torch.cuda_policy import CudaPolicy
from floatwise.torch.plan_support import TORCH_DTYPES, check_plan
from floatwise.torch.weight_cache import keeps_gradients

__all__ = ["autocast_region", "float32_products"]


@contextmanager
def autocast_region(plan: Plan, device_type: str) -> Iterator[None]:
    """Runs the block as `plan` says: forward and loss belong inside, backward and optimizer outside.

    Under a lower `compute_dtype` this is `torch.autocast` with that dtype. On a CPU the operators follow
    CUDA's lists (see `cuda_policy`). Under float32 autocast is off, also where the caller had switched it on.
    On CUDA, products of float32 operands are computed as `plan.float32_matmul` says; on leaving, all is as it
    was.

    With activation checkpointing on a CPU, hold a `CudaPolicy` until the backward has ended, as `prepare`
    does: the backward computes the block's operators a second time. Holding one also spares each region the
    registration of the kernels, about a millisecond.

    Args:
      plan: The plan; islands are the business of `apply_islands`.
      device_type: `cpu` or `cuda`.

    Raises:
      PlanError: The plan computes in float8.
    """
    if plan.compute_dtype not in TORCH_DTYPES:
        check_plan(plan)
    dtype = TORCH_DTYPES[plan.compute_dtype]
    low = dtype is not torch.float32
    with ExitStack() as stack:
        stack.enter_context(float32_products(plan.float32_matmul, device_type))
        if low and device_type == "cpu":
            stack.enter_context(CudaPolicy())
        dtype_of_region = dtype if low else None
        stack.enter_context(
            torch.autocast(device_type, dtype=dtype_of_region, enabled=low, cache_enabled=keeps_gradients())
        )
        if low:
            stack.enter_context(_compiled_backward_as_in_eager())
        yield


@contextmanager
def _compiled_backward_as_in_eager() -> Iterator[None]:
    """Keeps autocast out of the backward that torch.compile makes along with a forward.

    By its default it runs the backward under the forward's autocast, and so an island's in 16 bits. The
    setting is part of the key of its caches; older releases have none.
    """
    config: Any = torch._functorch.config
    before = getattr(config, "backward_pass_autocast", None)
    if before is None:
        yield
        return
    config.backward_pass_autocast = "off"
    try:
        yield
    finally:
        config.backward_pass_autocast = before


@contextmanager
def float32_products(how: Literal["ieee", "tf32"], device_type: str) -> Iterator[None]:
    """Computes products of float32 operands on CUDA exactly, or with operands rounded to tfloat32.

    Matrix products and convolutions both obey; PyTorch's own default rounds for convolutions only.
    """
    if device_type != "cuda":
        yield
        return
    before = _read_switches()
    # The older two switches also set the newer ones. Set through the newer alone, reading the older raises.
    torch.set_float32_matmul_precision("high" if how == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = how == "tf32"
    try:
        yield
    finally:
        _write_switches(before)


@dataclass(frozen=True)
class _Switches:
    matmul: str
    cudnn: bool
    newer: tuple[str | None, ...]


# What the older two switches set beneath them. Older releases have neither these parts nor `fp32_precision`.
_NEWER: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    getattr(torch.backends.mkldnn, "matmul", None),
    getattr(torch.backends.cudnn, "conv", None),
    getattr(torch.backends.cudnn, "rnn", None),
)


def _read_switches() -> _Switches:
    newer = tuple(getattr(part, "fp32_precision", None) for part in _NEWER)
    # Reading an older switch raises where the caller has set the newer one alone: then the two disagree.
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul = "highest" if newer[0] == "tf32" else "high"
    try:
        cudnn = torch.backends.cudnn.allow_tf32
    except RuntimeError:
        cudnn = newer[2] != "tf32"
    return _Switches(matmul, cudnn, newer)


def _write_switches(state: _Switches) -> None:
    torch.set_float32_matmul_precision(state.matmul)
    torch.backends.cudnn.allow_tf32 = state.cudnn
    for part, precision in zip(_NEWER, state.newer, strict=True):
        if precision is not None:
            part.fp32_precision = precision
