# SPDX-License-Identifier: Apache-2.0
"""Loading a model that was saved under a plan."""

from __future__ import annotations

import os
from typing import Any

import keras

from floatwise.keras import loss_scale_optimizer  # registers our optimizer for loading
from floatwise.keras.applying import apply
from floatwise.plan import Plan

__all__ = ["load_model"]


def load_model(path: str | os.PathLike[str], plan: Plan | str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Returns the model of a `.keras` file, with its policies, loss scale and optimizer state.

    Keras' own `load_model` does the same once `floatwise.keras.LossScaleOptimizer` has been imported, whatever the
    global policy is: functional and Sequential models carry their layers' policies, and the file our optimizer. A
    subclassed model makes its layers in its own constructor, under the global policy of the moment: give the plan.

    Args:
      path: The file.
      plan: A plan to apply to the model, as for `apply`; the optimizer keeps its state. Default: none.
      **options: Arguments of `keras.saving.load_model`, such as `custom_objects`.

    Raises:
      PlanError: As `apply`.
      ValueError: Keras cannot read the file.
    """
    custom = {
        "LossScaleOptimizer": loss_scale_optimizer.LossScaleOptimizer,
        **(options.pop("custom_objects", None) or {}),
    }
    with keras.saving.custom_object_scope(custom):
        model = keras.saving.load_model(os.fspath(path), **options)
    if plan is not None:
        apply(model, plan)
    return model
