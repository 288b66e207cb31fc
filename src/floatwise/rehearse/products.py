# SPDX-License-Identifier: Apache-2.0
"""16-bit products of CPU tensors as matrix units compute them, at the speed of float32."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from floatwise.errors import BadInputError
from floatwise.rehearse.product_kernels import KEY, product_kernels
from floatwise.rehearse.recurrent import recurrent_kernels
from floatwise.torch.held_kernels import HeldKernels, KernelHold

__all__ = ["MatrixUnits"]

_SUPPORTED = (torch.float16, torch.bfloat16)


def _default_dtypes() -> tuple[torch.dtype, ...]:
    """float16, and bfloat16 unless the CPU has instructions that multiply it into float32."""
    # Private names, and not of every release: without an answer, both are computed in float32.
    ask = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return (torch.float16,) if any(has() for has in ask if has is not None) else _SUPPORTED


def _register(library: torch.library.Library, dtypes: Collection[Any]) -> None:
    for name, kernel in product_kernels(dtypes).items():
        library.impl(name, kernel, KEY, with_keyset=True)
    for name, kernel in recurrent_kernels(dtypes).items():
        library.impl(name, kernel, "AutocastCPU")


_registrations = HeldKernels(_register, 4)


class MatrixUnits(KernelHold):
    """While open, 16-bit products of CPU tensors are computed as matrix units do; also a context manager.

    Matrix products, convolutions, scaled dot product attention and recurrent layers, forward and backward, take
    their operands as given, accumulate in float32 and round the result once, to infinity where it is too large.
    Element-wise operators keep PyTorch's own 16-bit arithmetic, and everything in float32 stays as it is. PyTorch's
    own float16 kernels give such results, too, on most CPUs at a hundredth of the speed.

    Autograd, autocast, checkpointing, `GradScaler` and `torch.compile` need nothing: the kernels lie below them.
    To follow CUDA's choice of dtypes as well, hold `floatwise.torch.cuda_policy.CudaPolicy` and
    `floatwise.rehearse.cuda_specials.CudaSpecials` beside it.

    Within one product the order of summation is the CPU's. What is not rehearsed: sums of split products in 16 bits,
    which cuBLAS may choose (`allow_fp16_reduced_precision_reduction`), and the rounding of attention's
    probabilities before their product with the values, within CUDA's fused kernels.

    The first one to open and the last one to close change PyTorch's dispatcher: no other thread should compute
    meanwhile. Checkpointed blocks compute again during the backward pass, so keep it open over the whole step.

    Args:
      dtypes: The formats to compute so. Default: float16, and bfloat16 where this CPU has no instructions
        (AVX512-BF16, AMX) that multiply it; where it has, its own kernels are faster than float32 and round once,
        too, but flush numbers below 2^-126.

    Attributes:
      active: True until `close()`.

    Raises:
      BadInputError: A dtype that is neither float16 nor bfloat16, or none at all.
    """

    def __init__(self, dtypes: Iterable[torch.dtype] | None = None) -> None:
        self.dtypes = tuple(dict.fromkeys(_default_dtypes() if dtypes is None else dtypes))
        if not self.dtypes or not set(self.dtypes) <= set(_SUPPORTED):
            raise BadInputError(
                f"MatrixUnits: dtypes={self.dtypes}; allowed are torch.float16 and torch.bfloat16, or both"
            )
        super().__init__(_registrations, self.dtypes)
