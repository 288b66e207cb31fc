# SPDX-License-Identifier: Apache-2.0
"""Floatwise configures mixed precision training, proves that it works, and finds out why when it does not.

Importing this package loads no framework; `floatwise.torch`, `floatwise.tap` and the names of
`floatwise.rehearse` load PyTorch when first used, those of `floatwise.jax` JAX, those of
`floatwise.keras` Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from floatwise._version import __version__

if TYPE_CHECKING:
    from floatwise import exporters, formats, hardware, jax, keras, plan, probe, rehearse, tap, torch

__all__ = [
    "__version__",
    "exporters",
    "formats",
    "hardware",
    "jax",
    "keras",
    "plan",
    "probe",
    "rehearse",
    "tap",
    "torch",
]

_ROOMS = frozenset({"exporters", "formats", "hardware", "jax", "keras", "plan", "probe", "rehearse", "tap", "torch"})


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"floatwise.{name}")
    raise AttributeError(f"module 'floatwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
