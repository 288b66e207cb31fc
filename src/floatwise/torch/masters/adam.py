# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused Adam and AdamW on split weights as one compiled pass, where that gives PyTorch's own bits.

The bits of PyTorch's kernel depend on how it was compiled and on the processor. So on each machine the compiled pass is
tried against it first, and left out when a bit differs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from floatwise.torch.masters.compiled import load_compiled
from floatwise.torch.masters.kernel import is_wanted
from floatwise.torch.masters.split import join_halves, split_halves

__all__ = ["AdamWeight", "adam_kernel"]

_SOURCE = Path(__file__).with_name("adam.c")


class _Settings(ctypes.Structure):
    _fields_ = [(n, ctypes.c_float) for n in "decay weight_decay lerp_weight beta2 rest eps sign".split()]


class _Weight(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in "high low grad average square".split()),
        ("elements", ctypes.c_int64),
        ("negative_step_size", ctypes.c_float),
        ("correction", ctypes.c_float),
        ("grad_is_float32", ctypes.c_int32),
    ]


@dataclass(slots=True)
class AdamWeight:
    """A weight to update: contiguous CPU tensors of shape [n], of which the first `elements` count.

    Attributes:
      high: The bfloat16 weight.
      low: Its lower half, int16.
      grad: bfloat16 or float32.
      average: `exp_avg`, float32.
      square: `exp_avg_sq`, float32.
      step: The number of this step, from 1.
      elements: A multiple of 16.
    """

    high: Tensor
    low: Tensor
    grad: Tensor
    average: Tensor
    square: Tensor
    step: float
    elements: int


class AdamKernel:
    """The compiled pass.

    Args:
      library: Compiled from `adam.c`.
      fused: Whether products and sums are rounded once.
    """

    def __init__(self, library: ctypes.CDLL, fused: bool) -> None:
        self._function = library.floatwise_adam
        self._function.restype = None
        self._fused = fused

    def step(self, group: dict[str, Any], weights: Sequence[AdamWeight], decoupled: bool) -> None:
        """Updates weights of one group.

        Args:
          group: Settings of Adam, without `amsgrad`.
          weights: The weights.
          decoupled: True for AdamW.
        """
        lr, (beta1, beta2), decay = float(group["lr"]), map(float, group["betas"]), group["weight_decay"]
        settings = _Settings(
            1.0 - lr * decay, decay, 1.0 - beta1, beta2, 1.0 - beta2, group["eps"], -1.0 if group["maximize"] else 1.0
        )
        table = (_Weight * len(weights))()
        for row, w in zip(table, weights, strict=True):
            row.high, row.low, row.grad = w.high.data_ptr(), w.low.data_ptr(), w.grad.data_ptr()
            row.average, row.square, row.elements = w.average.data_ptr(), w.square.data_ptr(), w.elements
            row.negative_step_size = -(lr / (1.0 - beta1**w.step))
            row.correction = math.sqrt(1.0 - beta2**w.step)
            row.grad_is_float32 = w.grad.dtype is torch.float32
        self._function(
            ctypes.byref(table),
            ctypes.c_int64(len(weights)),
            ctypes.byref(settings),
            int(decoupled or not decay),  # Adam adds nothing then, where `inf * 0` would be NaN
            int(self._fused),
            torch.get_num_threads(),
        )


@cache
def adam_kernel() -> AdamKernel | None:
    """Returns the compiled pass, where it can be compiled and gives PyTorch's bits."""
    if not is_wanted() or not hasattr(torch, "_fused_adamw_"):
        return None
    # Products and sums are written as they are to be rounded.
    library = load_compiled(_SOURCE, "-ffp-contract=off", "-fno-math-errno")
    if library is None:
        return None
    kernels = (AdamKernel(library, fused) for fused in (True, False))
    return next((kernel for kernel in kernels if _agrees(kernel)), None)


def _agrees(kernel: AdamKernel) -> bool:
    return all(
        _agrees_with(kernel, decoupled, betas, maximize)
        for decoupled in (True, False)
        for betas, maximize in (((0.9, 0.999), False), ((0.3, 0.95), True))
    )


def _agrees_with(kernel: AdamKernel, decoupled: bool, betas: tuple[float, float], maximize: bool) -> bool:
    # Values as they are in training, and far smaller and larger ones; gradients of zero among them.
    generator = torch.Generator().manual_seed(0)
    size = 2**12
    spread = torch.exp2(torch.linspace(-140.0, 60.0, size))
    value = torch.randn(size, generator=generator) * torch.where(torch.arange(size) % 2 == 0, spread, 0.02)
    high, low = torch.empty(size, dtype=torch.bfloat16), torch.empty(size, dtype=torch.int16)
    split_halves(value.clone(), high, low)
    group = {"lr": 1e-3, "betas": betas, "weight_decay": 0.1, "eps": 1e-8, "maximize": maximize}
    ours, theirs = [[torch.zeros(size), torch.zeros(size)] for _ in range(2)]
    operator: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
    for number in range(1, 5):
        grad = (torch.randn(size, generator=generator) * spread.flip(0).sqrt() * 1e-3).bfloat16()
        grad[:: 7 + number] = 0.0
        given = grad if number % 2 else grad.float()
        kernel.step(group, [AdamWeight(high, low, given, ours[0], ours[1], float(number), size)], decoupled)
        operator(
            [value], [grad.float()], [theirs[0]], [theirs[1]], [], [torch.tensor(float(number))],
            amsgrad=False, beta1=betas[0], beta2=betas[1],
            **{name: group[name] for name in ("lr", "weight_decay", "eps", "maximize")},
        )  # fmt: skip
    joined = torch.empty(size)
    join_halves(joined, high, low)
    pairs = zip((joined, *ours), (value, *theirs), strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)
