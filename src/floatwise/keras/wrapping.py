# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a model under a plan: with a loss scale exactly once, or with none."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.utils import tracking

from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
from floatwise.plan import LossScale

__all__ = ["described", "keep_scaling", "scaled", "set_optimizer", "unwrapped"]


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer inside every loss-scale optimizer around it."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def described(optimizer: Any) -> str:
    """Returns the classes of an optimizer and those inside it, such as `LossScaleOptimizer(Adam)`."""
    inner = getattr(optimizer, "inner_optimizer", None)
    name = type(optimizer).__name__
    return name if inner is None else f"{name}({described(inner)})"


def scaled(optimizer: Any, settings: LossScale | None) -> Any:
    """Returns an optimizer with the plan's loss scale around it once, or with none when `settings` is None.

    The inner optimizer stays the same object with its state. A scale that has been trained with is kept, within the
    settings' bounds.
    """
    if settings is None:
        return unwrapped(optimizer)
    if isinstance(optimizer, LossScaleOptimizer) and optimizer.settings == settings:
        return optimizer
    inner = unwrapped(optimizer)
    made = LossScaleOptimizer(inner, settings=settings)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer.built and inner is not optimizer:
        if int(ops.convert_to_numpy(inner.iterations)):
            made.build(list(optimizer._trainable_variables))
            scale = float(ops.convert_to_numpy(optimizer.dynamic_scale))
            if settings.mode == "dynamic":
                made.dynamic_scale.assign(min(max(scale, settings.floor), settings.ceiling))
    return made


def set_optimizer(model: Any, optimizer: Any) -> None:
    """Gives a compiled model another optimizer; loss, metrics and all other arguments of `compile()` stay.

    Functions that were traced for the old one, or under other policies, are dropped.
    """
    with tracking.DotNotTrackScope():
        model.optimizer = optimizer
        model.train_function = model.test_function = model.predict_function = None
        kept = getattr(model, "_compile_config", None)
        if kept is not None:
            model._compile_config = type(kept)(**{**kept.config, "optimizer": optimizer})


def keep_scaling(model: Any, settings: LossScale | None) -> None:
    """Makes every later `model.compile()` end with the plan's loss scale around the optimizer."""

    def compile_with_plan(*args: Any, **kwargs: Any) -> None:
        type(model).compile(model, *args, **kwargs)
        if getattr(model, "optimizer", None) is not None:
            set_optimizer(model, scaled(model.optimizer, settings))

    # Not by setattr, which would track it as a part of the model.
    model.__dict__["compile"] = compile_with_plan
