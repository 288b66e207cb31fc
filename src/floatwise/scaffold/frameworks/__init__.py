# SPDX-License-Identifier: Apache-2.0
"""The frameworks by name, in the order in which they are offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from floatwise.scaffold.framework import Framework
from floatwise.scaffold.frameworks.accelerate import ACCELERATE
from floatwise.scaffold.frameworks.deepspeed import DEEPSPEED
from floatwise.scaffold.frameworks.flax import FLAX
from floatwise.scaffold.frameworks.keras import KERAS
from floatwise.scaffold.frameworks.lightning import LIGHTNING
from floatwise.scaffold.frameworks.pytorch import PYTORCH
from floatwise.scaffold.frameworks.trainer import TRAINER

__all__ = ["FRAMEWORKS", "combinations"]

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {row.name: row for row in (PYTORCH, TRAINER, ACCELERATE, LIGHTNING, DEEPSPEED, KERAS, FLAX)}
)


def combinations() -> Iterator[tuple[str, str, str]]:
    """Yields framework, backend (empty where there is no choice) and parallelism of everything that is possible."""
    for row in FRAMEWORKS.values():
        for backend in row.backends or ("",):
            for parallel in row.parallels(backend):
                yield row.name, backend, parallel
