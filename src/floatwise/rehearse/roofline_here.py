# SPDX-License-Identifier: Apache-2.0
"""This machine's own rates, measured in about a second: what a CPU's row cannot say."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from floatwise.rehearse.roofline_rates import Rates

__all__ = ["measured_rates"]

_SIDE = 768
_ELEMENTS = 2**24
_BATCH, _CHANNELS, _IMAGE = 16, 128, 16
_HEADS, _LENGTH, _WIDTH = 32, 128, 64


def measured_rates(
    formats: tuple[str, ...] = ("float32", "bfloat16"), clock: Callable[[], float] = time.perf_counter
) -> Rates:
    """Measures products, convolutions, attention, memory bandwidth, element-wise arithmetic, and an operator's start.

    Each is the fastest of several tries: other work on the machine only ever adds.

    Args:
      formats: Of products. Leave float16 out where the CPU has no unit for it: PyTorch takes minutes there.
      clock: Gives seconds. With one thread, `time.process_time` leaves out what other processes take.
    """

    def seconds(function: Callable[[], object]) -> float:
        times = []
        for _ in range(15):
            started = clock()
            function()
            times.append(clock() - started)
        return min(times)

    matrix: dict[str, float] = {}
    of_operators: dict[tuple[str, str], float] = {}
    for name in formats:
        a = torch.randn(_SIDE, _SIDE, dtype=getattr(torch, name))
        image = torch.randn(_BATCH, _CHANNELS, _IMAGE, _IMAGE, dtype=a.dtype)
        kernel = torch.randn(_CHANNELS, _CHANNELS, 3, 3, dtype=a.dtype)
        query = torch.randn(1, _HEADS, _LENGTH, _WIDTH, dtype=a.dtype)
        matrix[name] = 2 * _SIDE**3 / seconds(partial(torch.mm, a, a))
        of_operators["convolution", name] = (
            2 * image.numel() * kernel[0].numel() / seconds(partial(F.conv2d, image, kernel, padding=1))
        )
        of_operators["attention", name] = (
            4 * _HEADS * _LENGTH**2 * _WIDTH / seconds(partial(F.scaled_dot_product_attention, query, query, query))
        )
    x, y, small, in_cache = torch.randn(_ELEMENTS), torch.empty(_ELEMENTS), torch.randn(8), torch.randn(2**17)
    return Rates(
        matrix=matrix,
        vector=in_cache.numel() / seconds(partial(F.gelu, in_cache)),
        bytes_per_second=8 * _ELEMENTS / seconds(partial(y.copy_, x)),
        start_seconds=seconds(partial(small.add_, 1.0)),
        of_operators=of_operators,
    )
