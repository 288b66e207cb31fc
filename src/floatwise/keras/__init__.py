# SPDX-License-Identifier: Apache-2.0
"""The Keras runtime: a plan applied to a model, a loss scale that cannot collapse, and what a model really computes.

Importing this package loads no framework; its names load Keras, and the backend it is set to, when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from floatwise.errors import MissingPackageError

if TYPE_CHECKING:
    from floatwise.keras.applying import apply
    from floatwise.keras.custom_loop import training_step
    from floatwise.keras.dtype_census import census
    from floatwise.keras.loading import load_model
    from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
    from floatwise.keras.monitor import Monitor
    from floatwise.keras.operator_census import operator_dtypes
    from floatwise.keras.report import Applied, LayerFormat

__all__ = [
    "Applied",
    "LayerFormat",
    "LossScaleOptimizer",
    "Monitor",
    "apply",
    "census",
    "load_model",
    "operator_dtypes",
    "training_step",
]

_WHERE = {
    "Applied": "report",
    "LayerFormat": "report",
    "LossScaleOptimizer": "loss_scale_optimizer",
    "Monitor": "monitor",
    "apply": "applying",
    "census": "dtype_census",
    "load_model": "loading",
    "operator_dtypes": "operator_census",
    "training_step": "custom_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'floatwise.keras' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"floatwise.keras.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("keras", "tensorflow", "jax", "torch"):
            raise
        raise MissingPackageError(
            f"this needs Keras 3 and its backend, and {error.name} is not installed in this environment: pip install "
            "'floatwise[keras]' and one of tensorflow, jax and torch; KERAS_BACKEND says which one Keras uses"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
