# SPDX-License-Identifier: Apache-2.0
"""The one way in for names that people write: a device, "cpu" or "here"."""

from __future__ import annotations

from floatwise.errors import UnknownNameError
from floatwise.hardware.detection import Detected, best_here, detect
from floatwise.hardware.device import Device
from floatwise.hardware.names import find_device, nearest_devices
from floatwise.hardware.table import DEVICES

__all__ = ["get_device"]

_HERE = ("here", "local")


def get_device(text: str) -> Device:
    """Returns the row of a device.

    Names are compared without case, punctuation, vendor words, memory sizes and sockets; laptop versions have
    the row of the desktop card, which is faster. "cpu" is the CPU of this machine, "here" (or "local") the
    best device in it.

    Args:
      text: For example "nvidia-t4", "Tesla T4", "NVIDIA A100-SXM4-80GB", "RTX 2080 Ti", "3090".

    Raises:
      UnknownNameError: No row has this name; the message names the nearest.
    """
    name = text.strip().casefold()
    if name in _HERE:
        return _known(best_here())
    if name == "cpu":
        return _known(detect()[-1])
    found = find_device(text)
    if found is None:
        raise _unknown(text)
    return found


def _known(detected: Detected) -> Device:
    if detected.device is None:
        raise _unknown(detected.reported_name)
    return detected.device


def _unknown(text: str) -> UnknownNameError:
    near = nearest_devices(text)
    hint = f"nearest: {', '.join(f'{d.id} ({d.name})' for d in near)}" if near else None
    error = UnknownNameError("device", text, DEVICES, hint)
    # Ids carry the vendor, names as written often do not, so names are the better guide to what was meant.
    error.nearest = [d.id for d in near] or error.nearest
    return error
