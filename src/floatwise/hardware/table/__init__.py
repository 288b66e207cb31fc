# SPDX-License-Identifier: Apache-2.0
"""The hardware table: one row per device, one file per family."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.hardware.device import Device
from floatwise.hardware.table import (
    accelerators,
    amd,
    apple,
    cpu,
    nvidia_datacenter,
    nvidia_geforce,
    nvidia_workstation,
    tpu,
)

__all__ = ["DEVICES"]

_FAMILIES = (nvidia_datacenter, nvidia_geforce, nvidia_workstation, amd, accelerators, tpu, apple, cpu)

#: Every row by its id.
DEVICES: Mapping[str, Device] = MappingProxyType({row.id: row for family in _FAMILIES for row in family.ROWS})
