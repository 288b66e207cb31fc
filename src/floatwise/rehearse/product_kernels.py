# SPDX-License-Identifier: Apache-2.0
"""Kernels that compute a 16-bit product in float32 and round its result once.

They stand on the dispatch key `BackendSelect`: below autograd and autocast, which therefore act as on a GPU, and
above the CPU's own kernels, which stay where they are and serve float32. Every call of an operator passes that
key, whichever C++ composite makes it, and PyTorch leaves it empty for the operators listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

__all__ = ["IN_PLACE", "KEY", "PRODUCTS", "WRITTEN_TO", "product_kernels"]

#: A kernel takes the dispatch keys of the call, then the operator's arguments.
Kernel = Callable[..., Any]

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

#: In-place form → the operator that computes it.
IN_PLACE: dict[str, str] = {f"{name}_": name for name in ("addmm", "baddbmm", "addbmm", "addmv")}

#: Form with `out=` → the operator that computes it.
WRITTEN_TO: dict[str, str] = {
    f"{name}.out": name for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
}

#: Arguments and results that are float32 or bytes whatever the operands are, and a mask that may be either.
_NOT_OPERANDS = frozenset({"logsumexp", "workspace", "attn_mask"})


def product_kernels(dtypes: Collection[torch.dtype]) -> dict[str, Kernel]:
    """Returns a kernel for each operator of the three tables that this torch has.

    Args:
      dtypes: The dtypes whose products are computed in float32; looked into at every call.
    """
    known = torch._C._dispatch_has_kernel
    kernels = {n: _functional(_overload(n), dtypes) for n in PRODUCTS if known(f"aten::{n}")}
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
        if operand is not None and not (
            operand.dtype is dtype and operand.is_cpu and operand.layout is torch.strided
        ):
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
        raised = [_raised(a, dtype) for a in args]
        results = redispatch(keys, *raised, **{k: _raised(v, dtype) for k, v in kwargs.items()})
        if single:
            return results.to(dtype)
        return tuple(_lowered(r, dtype) if low else r for r, low in zip(results, rounded, strict=True))

    return kernel


def _in_place(op: Any, functional: Any, dtypes: Collection[torch.dtype]) -> Kernel:
    positions = _operand_positions(op)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        keys = keys & _BELOW
        if not _is_product(args, positions, dtypes):
            return op.redispatch(keys, *args, **kwargs)
        dtype = args[0].dtype
        result = functional.redispatch(keys, *[_raised(a, dtype) for a in args], **kwargs)
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
        result = functional.redispatch(keys, *[_raised(a, dtype) for a in args], **kwargs)
        torch.ops.aten._resize_output_(out, result.shape, out.device)
        return out.copy_(result)

    return kernel


def _raised(value: Any, dtype: torch.dtype) -> Any:
    return value.to(torch.float32) if isinstance(value, Tensor) and value.dtype is dtype else value


def _lowered(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype is torch.float32 else value
