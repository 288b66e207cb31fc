# SPDX-License-Identifier: Apache-2.0
"""What devices can do, and which of them are here."""

from __future__ import annotations

from floatwise.hardware.detection import Detected, Machine, best_here, detect
from floatwise.hardware.device import Device, MatrixPath
from floatwise.hardware.facts import device_advice, device_facts
from floatwise.hardware.lookup import get_device
from floatwise.hardware.table import DEVICES

__all__ = [
    "DEVICES",
    "Detected",
    "Device",
    "Machine",
    "MatrixPath",
    "best_here",
    "detect",
    "device_advice",
    "device_facts",
    "get_device",
]
