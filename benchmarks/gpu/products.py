# SPDX-License-Identifier: Apache-2.0
"""Products in 16 bits with their gradients, on both sides, and how far apart the values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.gpu.part import Size
from benchmarks.gpu.sides import Side
from torch import Tensor, nn

__all__ = ["ALLOWED_ROUNDINGS", "Distance", "distance", "products"]

#: Relative distance of results that is allowed, in units of the format's epsilon. Chosen: each side rounds its result
#: once, by at most half an epsilon; four leave room for cuBLAS's split sums in 16 bits and for attention's kernels,
#: which round probabilities before the second product.
ALLOWED_ROUNDINGS = 4.0

Call = Callable[..., Tensor]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Distance:
    """How far results of one product are apart: norms of differences over norms, the larger of result and gradients.

    Attributes:
      to_real: Of the rehearsal from the real side.
      rehearsed_error: Of the rehearsal from float64.
      real_error: Of the real side from float64.
      finite: Whether all results are finite.
    """

    to_real: float
    rehearsed_error: float
    real_error: float
    finite: bool


def _lstm(x: Tensor, *weights: Tensor) -> Tensor:
    state = x.new_zeros(1, x.shape[1], weights[1].shape[1])
    return torch.lstm(x, (state, state), list(weights), True, 1, 0.0, True, False, False)[0]


def products(size: Size) -> Mapping[str, tuple[Call, Shapes]]:
    """Returns products by name: what computes them, and the shapes of their operands."""
    n = 32 if size == "tiny" else 512
    channels, image = max(n // 8, 4), max(n // 32, 6)
    conv = ((4, channels, image, image), (channels, channels, 3, 3))
    heads = (2, 4, n // 4, 64)
    return {
        "mm": (torch.mm, ((n, n), (n, n))),
        "addmm": (torch.addmm, ((n,), (n, n), (n, n))),
        "bmm": (torch.bmm, ((4, n // 2, n // 2), (4, n // 2, n // 2))),
        "baddbmm": (torch.baddbmm, ((4, n // 2, n // 2), (4, n // 2, n // 2), (4, n // 2, n // 2))),
        "mv": (torch.mv, ((n, n), (n,))),
        "linear": (F.linear, ((4, n // 2, n), (n, n), (n,))),
        "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((4, channels, n), (channels, channels, 3))),
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), conv),
        "conv2d, 2 groups": (
            lambda x, w: F.conv2d(x, w, groups=2),
            (conv[0], (channels, channels // 2, 3, 3)),
        ),
        "conv_transpose2d": (F.conv_transpose2d, conv),
        "attention": (F.scaled_dot_product_attention, (heads, heads, heads)),
        "attention, causal": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (heads, heads, heads),
        ),
        "lstm": (_lstm, ((8, 4, 32), (128, 32), (128, 32), (128,), (128,))),
    }


def distance(call: Call, shapes: Shapes, real: Side, rehearsal: Side, dtype: torch.dtype) -> Distance:
    """Computes a product and its gradients on both sides.

    Args:
      call: Of the operands.
      shapes: Of the operands.
      real: The real side.
      rehearsal: The rehearsal.
      dtype: The format.
    """
    generator = torch.Generator().manual_seed(0)
    # Weights are as an initialisation has them, so that results are about 1.
    operands = [
        (torch.randn(shape, generator=generator) / (shape[-1] ** 0.5 if position else 1.0)).to(dtype)
        for position, shape in enumerate(shapes)
    ]
    exact = _results(call, [t.double() for t in operands], dtype)
    sides = []
    for side in (rehearsal, real):
        # In a region: recurrent layers are rehearsed where autocast lowers them.
        with side.holding(), side.region(dtype):
            results = _results(call, side.place(operands), dtype)
        sides.append([t.cpu().double() for t in results])
    return Distance(
        to_real=max(map(_distance, sides[0], sides[1])),
        rehearsed_error=max(map(_distance, sides[0], exact)),
        real_error=max(map(_distance, sides[1], exact)),
        finite=all(bool(t.isfinite().all()) for results in sides for t in results),
    )


def _results(call: Call, operands: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    operands = [nn.Parameter(t) for t in operands]
    out = call(*operands)
    # A gradient that is no constant, and the same on every device.
    gradient = torch.cos(torch.arange(out.numel(), dtype=torch.float32)).view(out.shape).to(dtype)
    out.backward(gradient.to(out.device, out.dtype))
    return [out.detach(), *(t.grad for t in operands if t.grad is not None)]


def _distance(of: Tensor, reference: Tensor) -> float:
    norm = float(reference.norm())
    return float((of - reference).norm()) / norm if norm else float(of.norm())
