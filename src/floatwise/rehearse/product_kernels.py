# SPDX-License-Identifier: Apache-2.0
"""Kernels that compute a 16-bit product in float32 and round its result once.

They stand on the dispatch key `BackendSelect`: below autograd, autocast and dispatch modes, which therefore act and
see as on a GPU, and above the CPU's own kernels, which stay where they are and serve float32. Every call of an
operator passes that key, whichever C++ composite makes it, and PyTorch leaves it empty for the operators listed here.
A call that is not theirs costs two microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from floatwise.rehearse.full_float32 import full_float32, rounds_float32

__all__ = ["IN_PLACE", "KEY", "PRODUCTS", "SOFTMAX", "WRITTEN_TO", "product_kernels", "to_dtype"]

#: A kernel takes the dispatch keys of the call, then the operator's arguments.
Kernel = Callable[..., Any]

#: `Tensor.to` of PyTorch itself: where a plan is applied, the script's `torch.Tensor.to` does not give 16 bits.
to_dtype: Callable[[Tensor, torch.dtype], Tensor] = torch._C.TensorBase.to

KEY = "BackendSelect"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

#: Operators that return new tensors. Composites (`linear`, `matmul`, `einsum`, `conv2d`, the math form of scaled
#: dot product attention, recurrent cells) are made of these.
PRODUCTS: tuple[str, ...] = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation"),
    *("convolution", "_convolution", "convolution_backward", "conv_tbc"),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
)

#: Not products, yet CUDA computes them in float32 and rounds once; PyTorch's CPU kernels round in between. Inside
#: autocast they are met in 16 bits where a dtype was asked for, as `cross_entropy_loss` does on CUDA.
SOFTMAX: tuple[str, ...] = ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data")

#: In-place form → the operator that computes it.
IN_PLACE: dict[str, str] = {f"{name}_": name for name in ("addmm", "baddbmm", "addbmm", "addmv")}

#: Form with `out=` → the operator that computes it.
WRITTEN_TO: dict[str, str] = {
    f"{name}.out": name for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
}

#: Arguments and results that are float32 or bytes whatever the operands are, and a mask that may be either.
_NOT_OPERANDS = frozenset({"logsumexp", "workspace", "attn_mask"})


def product_kernels(dtypes: Collection[torch.dtype]) -> dict[str, Kernel]:
    """Returns a kernel for each operator of the four tables that this torch has.

    Args:
      dtypes: The dtypes whose products are computed in float32; looked into at every call.
    """
    known = torch._C._dispatch_has_kernel
    kernels = {n: _functional(_overload(n), dtypes) for n in (*PRODUCTS, *SOFTMAX) if known(f"aten::{n}")}
    kernels |= {n: _in_place(_overload(n), _overload(by), dtypes) for n, by in IN_PLACE.items() if known(f"aten::{n}")}
    return kernels | {
        n: _written_to(_overload(n), _overload(by), dtypes) for n, by in WRITTEN_TO.items() if known(f"aten::{n}")
    }


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _operand_positions(op: Any) -> list[int]:
    arguments = [a for a in op._schema.arguments if not a.kwarg_only]
    return [i for i, a in enumerate(arguments) if "Tensor" in str(a.type) and a.name not in _NOT_OPERANDS]


def _is_product(args: tuple[Any, ...], positions: list[int], dtypes: Collection[torch.dtype]) -> bool:
    """True when all operands are dense CPU tensors of one of `dtypes`; others are PyTorch's to compute or refuse."""
    dtype = args[0].dtype
    if dtype not in dtypes:
        return False
    for position in positions:
        operand = args[position] if position < len(args) else None
        if operand is not None and not (operand.dtype is dtype and operand.is_cpu and operand.layout is torch.strided):
            return False
    return True


def _functional(op: Any, dtypes: Collection[torch.dtype]) -> Kernel:
    positions = _operand_positions(op)
    redispatch = op.redispatch
    rounded = [r.name not in _NOT_OPERANDS for r in op._schema.returns]
    single = len(rounded) == 1

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        keys = keys & _BELOW
        dtype = args[0].dtype
        if dtype not in dtypes or not _is_product(args, positions, dtypes):
            return redispatch(keys, *args, **kwargs)
        results = _in_float32(redispatch, keys, dtype, args, kwargs)
        if single:
            return to_dtype(results, dtype)
        return tuple(_lowered(r, dtype) if low else r for r, low in zip(results, rounded, strict=True))

    return kernel


def _in_place(op: Any, functional: Any, dtypes: Collection[torch.dtype]) -> Kernel:
    positions = _operand_positions(op)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        keys = keys & _BELOW
        if not _is_product(args, positions, dtypes):
            return op.redispatch(keys, *args, **kwargs)
        dtype = args[0].dtype
        result = _in_float32(functional.redispatch, keys, dtype, args, kwargs)
        if result.shape != args[0].shape:
            return op.redispatch(keys, *args, **kwargs)  # for its error: what is written to may not be expanded
        return args[0].copy_(result)

    return kernel


def _written_to(op: Any, functional: Any, dtypes: Collection[torch.dtype]) -> Kernel:
    positions = _operand_positions(op)

    def kernel(keys: Any, *args: Any, out: Tensor, **kwargs: Any) -> Any:
        keys = keys & _BELOW
        if out.dtype is not args[0].dtype or not _is_product(args, positions, dtypes):
            return op.redispatch(keys, *args, out=out, **kwargs)
        dtype = out.dtype
        result = _in_float32(functional.redispatch, keys, dtype, args, kwargs)
        return torch.ops.aten._to_copy.out(result, out=out)  # resizes, with PyTorch's warning

    return kernel


def _in_float32(
    redispatch: Kernel, keys: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raised = [_raised(a, dtype) for a in args]
    named = {k: _raised(v, dtype) for k, v in kwargs.items()}
    if not rounds_float32():
        return redispatch(keys, *raised, **named)
    with full_float32():
        return redispatch(keys, *raised, **named)


def _raised(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return to_dtype(value, torch.float32) if value.dtype is dtype else value
    return torch.float32 if value is dtype else value  # what a softmax's backward is told of its input


def _lowered(value: Any, dtype: torch.dtype) -> Any:
    return to_dtype(value, dtype) if isinstance(value, Tensor) and value.dtype is torch.float32 else value
