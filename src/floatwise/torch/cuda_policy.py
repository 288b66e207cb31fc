# SPDX-License-Identifier: Apache-2.0
"""CUDA autocast's operator policy for CPU tensors, as kernels on the dispatch key `AutocastCPU`.

The kernels stand where torch's own would, above autograd: an operator called inside `torch.autocast("cpu")`,
from Python or from within a C++ composite, casts its inputs by CUDA's rule and then runs with autocast
excluded, as the C++ wrappers in `ATen/autocast_mode.h` do. An operator for which CPU autocast already has a
rule keeps it.

Registrations are process-wide and counted (`held_kernels`). What recomputes a forward later (activation checkpointing)
needs them until its backward has ended, so whoever trains holds them over the whole step; `prepare` does so until
`close()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import torch

from floatwise.torch.cuda_lists import FLOAT32, FLOAT32_APPEND_DTYPE, FLOAT32_SET_DTYPE, LOWER, WIDEST
from floatwise.torch.held_kernels import HeldKernels, KernelHold

__all__ = ["CudaPolicy", "missing_on_cpu"]

Kernel = Callable[..., Any]

_KEY = "AutocastCPU"
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_LOW = frozenset({torch.float16, torch.bfloat16})
_FLOATS = _LOW | {torch.float32}


def missing_on_cpu(names: tuple[str, ...]) -> list[str]:
    """Returns those of `names` that this torch knows and that CPU autocast has no rule for."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [n for n in names if torch._C._dispatch_has_kernel(f"aten::{n}") and not has(f"aten::{n}", _KEY)]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _raise_to_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW and value.is_cpu:
        return value.to(torch.float32)
    return value


def _float32(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*map(_raise_to_float32, args), **kwargs)

    return kernel


def _float32_set_dtype(op: Any) -> Kernel:
    # Where the dtype sits among the positional arguments, or past their end when it is keyword-only.
    names = [a.name for a in op._schema.arguments if not a.kwarg_only]
    position = names.index("dtype") if "dtype" in names else len(names)

    def kernel(first: Any, *args: Any, **kwargs: Any) -> Any:
        if first.dtype in _LOW and first.is_cpu and len(args) < position and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(first, *args, **kwargs)

    return kernel


def _float32_append_dtype(op: Any, typed: Any) -> Kernel:
    # Arguments equal to their default do not arrive, yet the typed overload has no defaults.
    defaults = [a.default_value for a in op._schema.arguments][1:]

    def kernel(first: Any, *args: Any) -> Any:
        dtype = torch.float32 if first.dtype in _FLOATS and first.is_cpu else first.dtype
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return typed(first, *args, *defaults[len(args) :], dtype=dtype)

    return kernel


def _cast_all(op: Any, choose: Callable[[set[torch.dtype]], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        eligible = [isinstance(a, torch.Tensor) and a.dtype in _FLOATS and a.is_cpu for a in args]
        dtype = choose({a.dtype for a, ok in zip(args, eligible, strict=True) if ok})
        cast = [a.to(dtype) if ok else a for a, ok in zip(args, eligible, strict=True)]
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*cast, **kwargs)

    return kernel


def _widest(dtypes: set[torch.dtype]) -> torch.dtype:
    region = torch.get_autocast_dtype("cpu")
    return region if dtypes <= {region} else torch.float32


def _lower(dtypes: set[torch.dtype]) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _missing(names: tuple[str, ...]) -> list[str]:
    """Returns what of `missing_on_cpu` this torch's CUDA autocast treats: older ones treat less."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in missing_on_cpu(names) if has(f"aten::{name}", "AutocastCUDA")]


def _kernels() -> dict[str, Kernel]:
    """Returns one kernel for each operator that CPU autocast has no rule for and this torch's CUDA autocast has."""
    kernels = {name: _float32(_overload(name)) for name in _missing(FLOAT32)}
    kernels |= {name: _float32_set_dtype(_overload(name)) for name in _missing(FLOAT32_SET_DTYPE)}
    for name in _missing(tuple(FLOAT32_APPEND_DTYPE)):
        kernels[name] = _float32_append_dtype(_overload(name), _overload(FLOAT32_APPEND_DTYPE[name]))
    kernels |= {name: _cast_all(_overload(name), _widest) for name in _missing(WIDEST)}
    return kernels | {n: _cast_all(_overload(n), _lower) for n in _missing(LOWER) if _is_leaf(n)}


def _is_leaf(name: str) -> bool:
    """True when the CPU runs the operator itself; the others decompose into operators that have rules."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(f"aten::{name}", key) for key in ("CPU", "CompositeExplicitAutograd"))


def _register(library: torch.library.Library, parts: Collection[Hashable]) -> None:
    for name, kernel in _kernels().items():
        library.impl(name, kernel, _KEY)


_registrations = HeldKernels(_register, 1)


class CudaPolicy(KernelHold):
    """Keeps CUDA's operator policy in place for CPU autocast until `close()`; also a context manager.

    The first hold and the last release change PyTorch's dispatcher: no other thread should compute meanwhile.

    Attributes:
      active: True while this holder keeps the policy in place.
    """

    def __init__(self) -> None:
        super().__init__(_registrations)
