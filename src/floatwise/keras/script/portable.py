# SPDX-License-Identifier: Apache-2.0
"""Files that the script saves under a plan load without Floatwise: they have Keras' own loss-scale optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_lib
from keras.src.utils import tracking

from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
from floatwise.tap.patches import Patches

__all__ = ["keep_files_portable"]


def keep_files_portable(patches: Patches) -> None:
    """Saves, and loads into a model under the plan, an optimizer as Keras' own would be.

    The scale and its count of good steps go into the file; when the plan is applied to a model that was loaded its
    scale is kept.

    Args:
      patches: Takes the replacements.
    """

    def swapping(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def with_stock_optimizer(model: Any, *args: Any, **kwargs: Any) -> Any:
            with _stock_optimizer(model):
                return original(model, *args, **kwargs)

        return with_stock_optimizer

    for module, names in (
        (saving_lib, ("save_model", "save_weights_only", "load_weights_only")),
        (legacy_h5_format, ("save_model_to_hdf5",)),
    ):
        for name in names:
            patches.replace(module, name, swapping)


@contextmanager
def _stock_optimizer(model: Any) -> Iterator[None]:
    ours = getattr(model, "optimizer", None)
    if not isinstance(ours, LossScaleOptimizer):
        yield
        return
    stock = keras.optimizers.LossScaleOptimizer(
        ours.inner_optimizer, ours.settings.initial_scale, ours.settings.growth_interval, name=ours.name
    )
    pairs = []
    if ours.built:
        stock.build(list(ours._trainable_variables))
        stock.built = True
        pairs = [(ours.dynamic_scale, stock.dynamic_scale), (ours.step_counter, stock.step_counter)]
    for mine, its in pairs:
        its.assign(mine)
    _put(model, stock)
    try:
        yield
    finally:
        _put(model, ours)
        for mine, its in pairs:
            mine.assign(its)


def _put(model: Any, optimizer: Any) -> None:
    """Gives the model another optimizer for a while; what was compiled for it stays."""
    with tracking.DotNotTrackScope():
        model.optimizer = optimizer
        kept = getattr(model, "_compile_config", None)
        if kept is not None:
            model._compile_config = type(kept)(**{**kept.config, "optimizer": optimizer})
