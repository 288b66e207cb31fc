# SPDX-License-Identifier: Apache-2.0
"""Accelerators by their PCI ids, for those whose vendor's tool is missing or does not exist.

A device counts only when a driver is bound to it and the driver's device file is there: hardware that cannot
be opened is no help. Ids of graphics built into CPUs are left out on purpose.

Sources of ids: the PCI ID Repository; JAX (`hardware_utils`) for TPUs; the AWS Neuron driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.names import find_device

__all__ = ["gaudi_accelerators", "pci_accelerators"]

_UEVENTS = "/sys/bus/pci/devices/*/uevent"

# Vendor id → patterns of the device files, one of which must exist.
_DEVICE_FILES = {
    "1002": ("/dev/kfd",),
    "8086": ("/dev/dri/renderD*",),
    "1DA3": ("/dev/accel/accel*", "/dev/hl[0-9]*"),
    "1AE0": ("/dev/accel*", "/dev/vfio/[0-9]*"),
    "1D0F": ("/dev/neuron*",),
}

# Vendor and device id → name. Some ids are shared by several products: their names have no row, on purpose.
_NAMES = {
    "1002:66A1": "AMD Instinct MI50/MI60",
    "1002:738C": "AMD Instinct MI100",
    "1002:740F": "AMD Instinct MI210",
    "1002:740C": "AMD Instinct MI250X/MI250",
    "1002:7408": "AMD Instinct MI250X",
    "1002:74A0": "AMD Instinct MI300A",
    "1002:74A1": "AMD Instinct MI300X",
    "1002:74B5": "AMD Instinct MI300X VF",
    "1002:74A5": "AMD Instinct MI325X",
    "1002:75A0": "AMD Instinct MI350X",
    "1002:75A3": "AMD Instinct MI355X",
    "1002:744C": "AMD Radeon RX 7900 XT/7900 XTX",
    "1002:7550": "AMD Radeon RX 9070/9070 XT",
    "8086:0BD5": "Intel Data Center GPU Max 1550",
    "8086:0BDA": "Intel Data Center GPU Max 1100",
    "8086:56A0": "Intel Arc A770 Graphics",
    "8086:E20B": "Intel Arc B580 Graphics",
    "1DA3:1020": "Intel Gaudi 2",
    "1DA3:1060": "Intel Gaudi 3",
    "1AE0:0027": "Google TPU v2/v3",
    "1AE0:005E": "Google TPU v4",
    "1AE0:0063": "Google TPU v5e",
    "1AE0:0062": "Google TPU v5p",
    "1AE0:006F": "Google TPU v6e",
    "1AE0:0076": "Google TPU7x",
    "1D0F:7164": "AWS Trainium",
    "1D0F:7364": "AWS Trainium2",
}
_TPU_V2_OR_V3 = "1AE0:0027"
# A GPU bound to this driver has been handed to a virtual machine; for TPUs it is the usual driver.
_PASSED_THROUGH = "vfio-pci"


def pci_accelerators(machine: Machine, skip_vendors: frozenset[str] = frozenset()) -> list[Detected]:
    """Returns the accelerators on a machine's PCI bus that a driver serves.

    Args:
      machine: Where to look.
      skip_vendors: Vendor ids that another tool has listed already.
    """
    return [
        _detected(machine, path, pci_id)
        for path, pci_id in _served(machine)
        if pci_id.split(":")[0] not in skip_vendors
    ]


def gaudi_accelerators(machine: Machine) -> list[Detected]:
    """Returns the Gaudi accelerators that `hl-smi` lists."""
    output = machine.run_command(["hl-smi", "-Q", "name,memory.total", "-f", "csv,noheader"]) or ""
    found = re.findall(r"^\s*(HL-\w+)[^,\n]*,\s*(\d+)\s*MiB", output, re.MULTILINE)
    return [Detected(find_device(name), name, int(mib) * 2**20, None, "hl-smi") for name, mib in found]


def _served(machine: Machine) -> Iterator[tuple[str, str]]:
    for path in machine.list_paths(_UEVENTS):
        fields = dict(line.split("=", 1) for line in (machine.read_file(path) or "").splitlines() if "=" in line)
        pci_id, driver = fields.get("PCI_ID", "").upper(), fields.get("DRIVER", "")
        vendor = pci_id.split(":")[0]
        usable = driver and (driver != _PASSED_THROUGH or vendor == "1AE0")
        if usable and pci_id in _NAMES and any(map(machine.list_paths, _DEVICE_FILES[vendor])):
            yield path, pci_id


def _detected(machine: Machine, uevent: str, pci_id: str) -> Detected:
    name, how = _NAMES[pci_id], f"PCI id {pci_id.lower()}"
    accelerator_type = machine.environment.get("TPU_ACCELERATOR_TYPE", "")
    if pci_id == _TPU_V2_OR_V3 and accelerator_type:
        name, how = f"Google TPU {accelerator_type.split('-')[0]}", f"{how}, TPU_ACCELERATOR_TYPE"
    memory = (machine.read_file(uevent.removesuffix("uevent") + "mem_info_vram_total") or "").strip()
    return Detected(find_device(name), name, int(memory) if memory.isdigit() else None, None, how)
