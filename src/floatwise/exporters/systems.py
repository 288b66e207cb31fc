# SPDX-License-Identifier: Apache-2.0
"""The systems by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from floatwise.errors import UnknownNameError
from floatwise.exporters.accelerate import ACCELERATE
from floatwise.exporters.composer import COMPOSER
from floatwise.exporters.ddp import DDP
from floatwise.exporters.deepspeed import DEEPSPEED
from floatwise.exporters.fsdp1 import FSDP1
from floatwise.exporters.fsdp2 import FSDP2
from floatwise.exporters.jax import JAX
from floatwise.exporters.keras import KERAS
from floatwise.exporters.lightning import LIGHTNING
from floatwise.exporters.megatron import MEGATRON
from floatwise.exporters.system import System
from floatwise.exporters.torch_amp import TORCH_AMP
from floatwise.exporters.torchao import TORCHAO
from floatwise.exporters.transformer_engine import TRANSFORMER_ENGINE
from floatwise.exporters.transformers import TRANSFORMERS

__all__ = ["SYSTEMS", "get_system"]

SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        system.name: system
        for system in (
            FSDP1,
            FSDP2,
            DDP,
            TORCH_AMP,
            LIGHTNING,
            DEEPSPEED,
            TRANSFORMERS,
            ACCELERATE,
            TORCHAO,
            TRANSFORMER_ENGINE,
            MEGATRON,
            COMPOSER,
            KERAS,
            JAX,
        )
    }
)


def get_system(name: str) -> System:
    """Returns the system called `name`.

    Raises:
      UnknownNameError: There is none.
    """
    system = SYSTEMS.get(name)
    if system is None:
        raise UnknownNameError("system", name, SYSTEMS)
    return system
