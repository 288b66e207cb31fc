# SPDX-License-Identifier: Apache-2.0
"""Keeps float32 products from being computed in bfloat16, which a script may have allowed.

`torch.set_float32_matmul_precision("medium")`, meant for the GPU, lets oneDNN round float32 operands to bfloat16 on
CPUs with such instructions. Eight bits are too few for a float16 operand. TensorFloat-32 has its eleven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["full_float32", "rounds_float32"]

_KINDS = ("matmul", "conv", "rnn")
# PyTorch 2.9 and later: a precision for each kind of product, which may come from a wider setting.
_get: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
_set: Callable[[str, str, str], Any] | None = getattr(torch._C, "_set_fp32_precision_setter", None)


def rounds_float32() -> bool:
    """True when some float32 products on the CPU may be computed with bfloat16 operands."""
    if _get is None:
        return torch.get_float32_matmul_precision() == "medium"
    return "bf16" in (_get("mkldnn", "matmul"), _get("mkldnn", "conv"), _get("mkldnn", "rnn"))


@contextmanager
def full_float32() -> Iterator[None]:
    """Computes float32 products in float32; leaves the settings as they were."""
    if _get is None or _set is None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    rounding = [kind for kind in _KINDS if _get("mkldnn", kind) == "bf16"]
    for kind in rounding:
        _set("mkldnn", kind, "ieee")
    try:
        yield
    finally:
        for kind in rounding:
            _set("mkldnn", kind, "none")  # what a wider setting says
            if _get("mkldnn", kind) != "bf16":
                _set("mkldnn", kind, "bf16")
