# SPDX-License-Identifier: Apache-2.0
"""What detection returns."""

from __future__ import annotations

from dataclasses import dataclass

from floatwise.hardware.device import Device

__all__ = ["Detected"]


@dataclass(frozen=True)
class Detected:
    """A device of this machine.

    Attributes:
      device: Its row; None when the hardware is there and the table has no row for it.
      reported_name: What the driver or the system calls it.
      memory_bytes: Its memory as reported, which is a little less than marketed.
      cores: Physical cores, for CPUs.
      how: What was read to find it.
    """

    device: Device | None
    reported_name: str
    memory_bytes: int | None
    cores: int | None
    how: str
