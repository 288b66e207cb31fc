# SPDX-License-Identifier: Apache-2.0
"""From any name a device goes by to its row.

A name is read in passes. Each takes away a little more of what does not identify the device, and the first
pass that meets a known name wins: so "H100 PCIe" is its own row while "A100-PCIE-40GB" is just an A100.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from floatwise.errors import nearest_names
from floatwise.hardware.device import Device
from floatwise.hardware.table import DEVICES

__all__ = ["device_keys", "find_device", "nearest_devices"]

_TRADEMARK = re.compile(r"\((r|tm|c)\)|®|™")
_VENDOR = re.compile(r"\b(nvidia|geforce|tesla|amd|ati|intel|habana ?labs|habana|google|cloud|apple|aws|amazon)\b")
# What a driver, a shop or a cloud adds to a name without meaning another device.
_FORM = re.compile(
    r"\b(laptop|notebook|mobile|desktop|gpus?|graphics|card|accelerator|module|generation|edition|workstation"
    r"|server|founders|with|design|max ?q|tensor core|oam|mcm|ac|mba|vf|sff|dgx|hgx|grid|mig .*)\b"
    r"|(?<=\w) \d{1,3}[qcba]$"  # a virtual GPU's profile: "A10-24Q"
    r"|(?<=\bv\d) \d+$|(?<=\bv\d[a-z]) \d+$|(?<=litepod) \d+$|(?<=tpu7x) \d+$"  # a TPU slice: "v5p-8"
)
_MEMORY = re.compile(r"\b(\d+ ?gi?b|hbm\d?e?|gddr\d?x?)\b")
_SOCKET = re.compile(r"\b(sxm\d?|pci ?e|nvl\d*)\b")
_PASSES = (_FORM, _MEMORY, _SOCKET)


def find_device(text: str) -> Device | None:
    """Returns the row of a device by its id, its name, or what drivers, vendors and people call it.

    Args:
      text: For example "nvidia-t4", "Tesla T4", "NVIDIA A100-SXM4-80GB", "RTX 2080 Ti", "3090".

    Returns:
      None when no row has this name.
    """
    index = device_keys()
    return next((index[key] for key in _readings(text) if key in index), None)


def nearest_devices(text: str) -> list[Device]:
    """Returns up to three rows whose names are most like `text`, best first."""
    index = device_keys()
    # Ten, because one row has several names.
    keys = [key for reading in _readings(text) for key in nearest_names(reading, index, 10)]
    found = {index[key].id: index[key] for key in keys}
    return list(found.values())[:3]


@lru_cache(maxsize=1)
def device_keys() -> dict[str, Device]:
    """Returns every known name, as letters and digits only, with its row."""
    return {_joined(_words(name)): row for row in DEVICES.values() for name in (row.id, row.name, *row.aliases)}


def _readings(text: str) -> Iterator[str]:
    words = _words(text)
    yield _joined(words)
    for noise in _PASSES:
        words = _spaces(noise.sub(" ", words))
        yield _joined(words)


def _words(text: str) -> str:
    plain = _TRADEMARK.sub(" ", text.casefold())
    return _spaces(_VENDOR.sub(" ", _spaces(re.sub(r"[^a-z0-9]+", " ", plain))))


def _spaces(text: str) -> str:
    return " ".join(text.split())


def _joined(words: str) -> str:
    return words.replace(" ", "")
