# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and cells inside autocast as on CUDA: every operand cast to the region's dtype, results in it.

On CUDA the layers are one operator, which autocast lowers as a whole (`_cudnn_rnn`), and so are the cells
(`AT_FORALL_LOWER_PRECISION_FP` of `ATen/autocast_mode.h`). The CPU takes both apart above autocast: states stay in
float32 and promote what they meet. These kernels, on the key `AutocastCPU`, stand where CUDA's do.

A layer computes its steps in float32 on the rounded operands and rounds what it returns once: weight gradients are
summed over time in float32, as cuDNN does. Unlike cuDNN's, the state handed from one step to the next, and from
one layer to the next, is not rounded. A cell is what CUDA's is without its fused kernel: products of matrix units
and 16-bit element-wise operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from floatwise.rehearse.product_kernels import to_dtype
from floatwise.torch.cuda_policy import missing_on_cpu

__all__ = ["CELLS", "LAYERS", "recurrent_kernels"]

Kernel = Callable[..., Any]

LAYERS: tuple[str, ...] = tuple(
    f"{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
)
CELLS: tuple[str, ...] = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


def recurrent_kernels(dtypes: Collection[torch.dtype]) -> dict[str, Kernel]:
    """Returns a kernel for each layer and cell for which CPU autocast has no rule.

    Args:
      dtypes: The dtypes whose products are computed in float32; looked into at every call.
    """
    kernels = {name: _kernel(name, dtypes) for name in missing_on_cpu(LAYERS)}
    return kernels | {name: _kernel(name, ()) for name in missing_on_cpu(CELLS)}


def _kernel(name: str, in_float32: Collection[torch.dtype]) -> Kernel:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any) -> Any:
        region = torch.get_autocast_dtype("cpu")
        compute = torch.float32 if region in in_float32 else region

        def lowered(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [lowered(v) for v in value]
            if isinstance(value, Tensor) and value.dtype in _FLOATS and value.is_cpu:
                return to_dtype(to_dtype(value, region), compute)
            return value

        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            results = op(*[lowered(a) for a in args])
        if isinstance(results, Tensor):
            return to_dtype(results, region)
        return tuple(to_dtype(r, region) for r in results)

    return kernel
