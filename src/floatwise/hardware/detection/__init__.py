# SPDX-License-Identifier: Apache-2.0
"""Which devices this machine has, read from drivers and the system; no framework is asked.

Frameworks answer "supported" for formats they emulate. Here a device is identified, and what it can do is
looked up in the table.
"""

from __future__ import annotations

from floatwise.hardware.detection.amd import amd_gpus
from floatwise.hardware.detection.apple import apple_gpus
from floatwise.hardware.detection.cpu import cpu
from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.detection.nvidia import nvidia_gpus
from floatwise.hardware.detection.pci import gaudi_accelerators, pci_accelerators

__all__ = ["Detected", "Machine", "best_here", "detect"]

_AMD, _HABANA = "1002", "1DA3"


def detect(machine: Machine | None = None) -> list[Detected]:
    """Returns the devices of this machine, best first, the CPU always last.

    Devices are ranked by the peak rate of their fastest matrix unit, then of float32; hardware without a row
    comes after that which has one.

    Args:
      machine: Another machine to look at, such as a recorded one.
    """
    machine = machine or Machine()
    return [*sorted(_accelerators(machine), key=_rank), cpu(machine)]


def best_here(machine: Machine | None = None) -> Detected:
    """Returns the best device of this machine: the first of `detect`."""
    return detect(machine)[0]


def _accelerators(machine: Machine) -> list[Detected]:
    amd, gaudi = amd_gpus(machine), gaudi_accelerators(machine)
    listed = {vendor for vendor, found in ((_AMD, amd), (_HABANA, gaudi)) if found}
    rest = pci_accelerators(machine, frozenset(listed))
    return [*nvidia_gpus(machine), *amd, *gaudi, *rest, *apple_gpus(machine)]


def _rank(detected: Detected) -> tuple[bool, float, float]:
    device = detected.device
    if device is None:
        return (True, 0.0, 0.0)
    matrix = max((path.peak_tflops or 0.0 for path in device.matrix.values()), default=0.0)
    return (False, -matrix, -device.vector_tflops.get("float32", 0.0))
