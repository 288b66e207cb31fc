# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, as `nvidia-smi` lists them, or else as the kernel driver does."""

from __future__ import annotations

import re

from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.names import find_device

__all__ = ["nvidia_gpus"]

_TOOLS = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")  # the second is not on every WSL shell's path
# Drivers before 510 do not know `compute_cap` and refuse the query; their files under /proc give the name.
_ARGUMENTS = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")
_CAPABILITY = re.compile(r"\d+\.\d+")
_DRIVER_FILES = "/proc/driver/nvidia/gpus/*/information"


def nvidia_gpus(machine: Machine) -> list[Detected]:
    """Returns the NVIDIA GPUs of a machine."""
    for tool in _TOOLS:
        found = _parsed(machine.run_command([tool, *_ARGUMENTS]) or "")
        if found:
            return found
    texts = (machine.read_file(path) for path in machine.list_paths(_DRIVER_FILES))
    return [Detected(find_device(n), n, None, None, "/proc/driver/nvidia") for n in map(_model, texts) if n]


def _parsed(output: str) -> list[Detected]:
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [_detected(*row) for row in rows if len(row) == 3 and row[0] and _CAPABILITY.fullmatch(row[2])]


def _detected(name: str, memory_mib: str, capability: str) -> Detected:
    how = f"nvidia-smi, compute capability {capability}"
    device = find_device(name)
    if device is not None and device.compute_capability != capability:
        # A virtual or renamed GPU: what the hardware can do decides, not what it is called.
        how = f"{how}, which is not that of {device.name}"
        device = None
    # Devices that share the CPU's memory report "[N/A]".
    memory = int(memory_mib) * 2**20 if memory_mib.isdigit() else None
    return Detected(device, name, memory, None, how)


def _model(information: str | None) -> str:
    for line in (information or "").splitlines():
        label, _, value = line.partition(":")
        if label.strip() == "Model":
            return value.strip()
    return ""
