# SPDX-License-Identifier: Apache-2.0
"""The operators that CPU autocast treats in a way of its own, treated as on CUDA.

`floatwise.torch.cuda_policy.CudaPolicy` adds the rules that the CPU lacks and keeps those it has, which is what
training on a CPU wants. A rehearsal wants CUDA's choice there, too:

* `binary_cross_entropy` is refused;
* `cross_entropy_loss` has no rule: its `log_softmax` is asked for the dtype of the logits and so rounds to it;
* decompositions, quantiles, `ctc_loss`, `polar` and `view_as_complex` have no rule either: where no device has a 16-bit
  kernel they raise;
* pooling, padding and sampling have no rule or the widest dtype: they return the dtype they were given. The CPU has no
  16-bit kernels for some, so their values are computed in float32 and rounded.

`fft`, `stft` and `trace` keep the float32 that CPU autocast gives them: CUDA has 16-bit kernels, the CPU has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable
from typing import Any

import torch
from torch import Tensor

from floatwise.rehearse.product_kernels import to_dtype
from floatwise.torch.cuda_lists import REFUSED
from floatwise.torch.held_kernels import HeldKernels, KernelHold

__all__ = ["AS_GIVEN", "WITHOUT_RULE", "CudaSpecials"]

#: Left to what they are made of.
WITHOUT_RULE: tuple[str, ...] = (
    "cross_entropy_loss",
    *("ctc_loss.IntList", "ctc_loss.Tensor", "quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"),
    *("_lu_with_info", "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "inverse", "lu_solve", "orgqr"),
    *("ormqr", "pinverse", "qr", "svd", "triangular_solve", "polar", "view_as_complex"),
    *("linalg_cholesky", "linalg_cholesky_ex", "linalg_cond", "linalg_cond.p_str", "linalg_eig", "linalg_eigh"),
    *("linalg_eigvals", "linalg_eigvalsh", "linalg_householder_product", "linalg_inv", "linalg_inv_ex"),
    *("linalg_lstsq", "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_float"),
    *("linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.tol_tensor", "linalg_qr", "linalg_solve"),
    *("linalg_svd", "linalg_svdvals", "linalg_tensorinv", "linalg_tensorsolve"),
)
#: Computed in float32, returned in the widest dtype of the arguments.
AS_GIVEN: tuple[str, ...] = (
    *("avg_pool3d", "max_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d"),
    *("fractional_max_pool2d", "fractional_max_pool3d", "max_unpool2d", "max_unpool3d"),
    *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
)

_KEY = "AutocastCPU"
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_LOW = frozenset({torch.float16, torch.bfloat16})
_MESSAGE = (
    "binary_cross_entropy inside torch.autocast: CUDA refuses it, because 16 bits cannot tell probabilities near 0 "
    "and 1 from 0 and 1. Use binary_cross_entropy_with_logits (BCEWithLogitsLoss) on the values before the sigmoid, "
    "or call it in float32 under torch.autocast(enabled=False)."
)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(_MESSAGE)


def _as_given(name: str) -> Callable[..., Any]:
    op = getattr(torch.ops.aten, name).default

    def raised(value: Any) -> Any:
        return to_dtype(value, torch.float32) if isinstance(value, Tensor) and value.dtype in _LOW else value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = {a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point()}
        widest = next(iter(given)) if len(given) == 1 else torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            results = op(*map(raised, args), **kwargs)
        if widest not in _LOW:
            return results
        if isinstance(results, Tensor):
            return to_dtype(results, widest)
        return tuple(to_dtype(r, widest) if r.is_floating_point() else r for r in results)

    return kernel


def _register(library: torch.library.Library, parts: Collection[Hashable]) -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    kernels: dict[str, Any] = {REFUSED: _refuse, **dict.fromkeys(WITHOUT_RULE, torch.library.fallthrough_kernel)}
    kernels |= {name: _as_given(name) for name in AS_GIVEN}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # that they are replaced
        for name, kernel in kernels.items():
            if has(f"aten::{name}", _KEY):
                library.impl(name, kernel, _KEY)


_registrations = HeldKernels(_register, 2)


class CudaSpecials(KernelHold):
    """While open, CPU autocast follows CUDA where it has rules of its own; also a context manager.

    Hold it beside `CudaPolicy` and `MatrixUnits`: together they give every operator of a region the dtype, and every
    product the values, that it would have on CUDA. The first one to open and the last one to close change PyTorch's
    dispatcher: no other thread should compute meanwhile.

    Attributes:
      active: True until `close()`.
    """

    def __init__(self) -> None:
        super().__init__(_registrations)
