# SPDX-License-Identifier: Apache-2.0
"""The GPU of Apple silicon, and macOS's way of describing a CPU."""

from __future__ import annotations

from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.names import find_device

__all__ = ["apple_gpus", "sysctl"]


def apple_gpus(machine: Machine) -> list[Detected]:
    """Returns the GPU of an Apple silicon Mac."""
    if machine.system != "Darwin" or machine.architecture != "arm64":
        return []
    name = sysctl(machine, "machdep.cpu.brand_string")
    memory = sysctl(machine, "hw.memsize")
    if not name:
        return []
    return [Detected(find_device(name), name, int(memory) if memory.isdigit() else None, None, "sysctl")]


def sysctl(machine: Machine, name: str) -> str:
    """Returns the value of a macOS kernel variable, empty when there is none."""
    return (machine.run_command(["sysctl", "-n", name]) or "").strip()
