# SPDX-License-Identifier: Apache-2.0
"""What the name of a CUDA kernel says: whether it multiplies, and whether on matrix units.

Names as torch.profiler gives them, of cuBLAS, cuBLASLt, cuDNN, CUTLASS and PyTorch from Volta to Blackwell.
"""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["Kind", "kind_of"]

Kind = Literal["matrix unit", "product", "other"]

#: Runs beside products and is none: sums of split products, changes of layout, set-up.
_BESIDE = re.compile(
    r"splitk.*reduce|reduce.*splitk|nchwto|nhwcto|transpose|compute_gemm_pointers|elementwise|flash_bwd_(dot|convert|clear)"
)

#: Matrix units by the shape of their instruction (884: Volta; 1688 and 16816: Turing and later; wgmma: Hopper), by what
#: CUTLASS calls them (tensorop), or by kernels that have no other form: cuBLASLt's nvjet and fused attention. PyTorch's
#: memory-efficient attention (fmha_cutlass) uses them from sm70 on, for float32 by three TF32 products each.
_MATRIX_UNIT = re.compile(
    r"[hsi]_?884|1688|16816|16832|hmma|imma|wmma|gmma|utcmma|tensorop|tensor(8x8x4|16x8x8|16x8x16|16x8x32)|nvjet"
    r"|warpgroup|flash_(fwd|bwd|fprop|bprop)|flash::flash|fmha_cutlass[fb]_.*_sm(7|8|9|1\d)|native_sdpa|_sm(90|100|120)_gemm"
)
#: xmma names the operands' formats; with float32 ones alone it multiplies without matrix units, on Hopper too.
_XMMA_FORMATS = re.compile(r"xmma_.*?_((tf32|f16|bf16|e4m3|e5m2|i8)[a-z0-9]*)")
_PRODUCT = re.compile(
    r"gemm|gemv|dot_kernel|dot_product|cutlass|xmma|fprop|dgrad|wgrad|scudnn|hcudnn|convolve|conv2d|conv_depthwise|winograd|cudnn.*fft"
    r"|rnn|lstm|fmha|attention|magma"
)


def kind_of(kernel: str) -> Kind:
    """Returns whether a kernel multiplies on matrix units, multiplies otherwise, or does something else.

    Args:
      kernel: Its name.
    """
    name = kernel.lower()
    if _BESIDE.search(name):
        return "other"
    if _MATRIX_UNIT.search(name) or _XMMA_FORMATS.search(_without_float32(name)):
        return "matrix unit"
    return "product" if _PRODUCT.search(name) else "other"


def _without_float32(name: str) -> str:
    """Returns a name in which `f32f32_tf32f32` begins with what is rounded."""
    return name.replace("_f32f32_", "_")
