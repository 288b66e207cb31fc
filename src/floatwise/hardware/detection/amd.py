# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs, as `rocm-smi` lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.names import find_device

__all__ = ["amd_gpus"]

_COMMAND = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
# Which field holds the name, and how it is capitalised, changed between ROCm releases.
_NAME_FIELDS = ("card series", "card model", "device name", "card sku")
_MEMORY_FIELD = "vram total memory (b)"


def amd_gpus(machine: Machine) -> list[Detected]:
    """Returns the AMD GPUs of a machine that has ROCm."""
    cards = _cards(machine.run_command(_COMMAND) or "")
    return [_detected({k.casefold(): str(v) for k, v in card.items()}) for card in cards]


def _cards(output: str) -> list[Mapping[str, object]]:
    # Warnings may come before and after the object.
    start, end = output.find("{\n") if "{\n" in output else output.find('{"'), output.rfind("}")
    try:
        read = json.loads(output[start : end + 1]) if start >= 0 else {}
    except json.JSONDecodeError:
        return []
    if not isinstance(read, dict):
        return []
    return [card for key, card in read.items() if key.startswith("card") and isinstance(card, dict)]


def _detected(card: Mapping[str, str]) -> Detected:
    names = [card[f] for f in _NAME_FIELDS if card.get(f)]
    device = next((row for row in map(find_device, names) if row is not None), None)
    memory = card.get(_MEMORY_FIELD, "")
    name = names[0] if names else "AMD GPU"
    return Detected(device, name, int(memory) if memory.isdigit() else None, None, "rocm-smi")
