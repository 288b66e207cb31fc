# SPDX-License-Identifier: Apache-2.0
"""The compiled form of splitting and joining, for CPU tensors; where it is missing, PyTorch's operators do the same.

The environment variable FLOATWISE_KERNEL=0 leaves it out.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from floatwise.torch.masters.compiled import load_compiled

__all__ = ["Kernel", "is_wanted", "load_kernel"]

_SOURCE = Path(__file__).with_name("kernel.c")


class Kernel:
    """The compiled functions, each over contiguous CPU tensors of shape [n]."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, count, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        self._join, self._split = library.floatwise_join, library.floatwise_split
        self._widen = library.floatwise_widen
        self._join.argtypes = self._split.argtypes = (pointer, pointer, pointer, count, threads)
        self._widen.argtypes = (pointer, pointer, count, threads)
        self._join.restype = self._split.restype = self._widen.restype = None

    def join(self, out: Tensor, high: Tensor, low: Tensor) -> None:
        """Writes into float32 `out` the values of bfloat16 `high` and int16 `low`."""
        self._join(out.data_ptr(), high.data_ptr(), low.data_ptr(), out.numel(), torch.get_num_threads())

    def split(self, value: Tensor, high: Tensor, low: Tensor) -> None:
        """Writes float32 `value` into bfloat16 `high` and int16 `low`."""
        self._split(value.data_ptr(), high.data_ptr(), low.data_ptr(), value.numel(), torch.get_num_threads())

    def widen(self, out: Tensor, value: Tensor) -> None:
        """Writes bfloat16 `value` into float32 `out`."""
        self._widen(out.data_ptr(), value.data_ptr(), out.numel(), torch.get_num_threads())


def load_kernel() -> Kernel | None:
    """Returns the kernel, built at the first call on a machine; None where it cannot be."""
    library = load_compiled(_SOURCE) if is_wanted() else None
    return None if library is None else Kernel(library)


def is_wanted() -> bool:
    """Returns whether compiled code is to be used, and the system is one that it is written for."""
    return os.environ.get("FLOATWISE_KERNEL", "1") != "0" and sys.byteorder == "little" and os.name == "posix"
