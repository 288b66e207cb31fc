# SPDX-License-Identifier: Apache-2.0
"""The systems by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.errors import UnknownNameError
from floatwise.exporters.fsdp2 import FSDP2
from floatwise.exporters.system import System

__all__ = ["SYSTEMS", "get_system"]

SYSTEMS: Mapping[str, System] = MappingProxyType({system.name: system for system in (FSDP2,)})


def get_system(name: str) -> System:
    """Returns the system called `name`.

    Raises:
      UnknownNameError: There is none.
    """
    system = SYSTEMS.get(name)
    if system is None:
        raise UnknownNameError("system", name, SYSTEMS)
    return system
