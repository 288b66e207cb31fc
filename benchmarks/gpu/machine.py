# SPDX-License-Identifier: Apache-2.0
"""The machine that figures are from, and the hardware table's row of its GPU."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

from floatwise.hardware import Device
from floatwise.hardware.names import find_device

__all__ = ["device_row", "machine", "no_cuda"]


def no_cuda() -> str | None:
    """Returns why there is no CUDA device to run on; None where there is one."""
    if torch.cuda.is_available():
        return None
    why = f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and sees none"
    if torch.version.cuda is None:
        why = f"torch {torch.__version__} is built without CUDA"
    return f"no CUDA device: {why}. Give --device cpu to prove the benchmark's code at tiny sizes."


def machine(device: str) -> dict[str, Any]:
    """Describes the machine.

    Args:
      device: `cuda` or `cpu`.
    """
    on_cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_cuda else "CPU",
        "capability": "{}.{}".format(*torch.cuda.get_device_capability()) if on_cuda else None,
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if on_cuda else None,
        "row": (row.id if (row := device_row()) is not None else None) if on_cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_cuda else None,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("numpy", "pydantic", "transformers")},
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def device_row() -> Device | None:
    """Returns the row of the CUDA device in use; None where the table has none of its name and capability."""
    row = find_device(torch.cuda.get_device_name())
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    return row if row is not None and row.compute_capability == capability else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
