# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for loops that do not scale: gradients reach the script unscaled, bad steps change nothing.

The gradient of a scaled loss is unscaled where the script gets it, so that clipping, logging and accumulation see what
they would in float32. If one of it is not finite all of it becomes NaN: that stays visible through clipping and sums,
and the optimizer that gets it skips its step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
from floatwise.keras.script.tracing import outside_traces
from floatwise.plan import LossScale

__all__ = ["RunScale"]


class RunScale:
    """One loss scale for all loops of a script, by the rules of `floatwise.keras.LossScaleOptimizer`.

    Args:
      settings: The plan's loss scale.
    """

    def __init__(self, settings: LossScale) -> None:
        self._settings = settings
        self._kept: LossScaleOptimizer | None = None
        self._local = threading.local()

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped. Waits for the device."""
        return 0 if self._kept is None else self._kept.skipped_steps

    @property
    def scale(self) -> float | None:
        """The scale now; None before the first gradient. Waits for the device."""
        return None if self._kept is None else float(ops.convert_to_numpy(self._kept.dynamic_scale))

    # -- who scales -----------------------------------------------------------------------------------------------

    def is_scaled_elsewhere(self) -> bool:
        """Returns, once, whether our optimizer has scaled the loss whose gradient is taken now."""
        scaled = getattr(self._local, "scaled", False)
        self._local.scaled = False
        self._local.unscaled_here = not scaled
        return scaled

    @property
    def has_unscaled(self) -> bool:
        """Whether the last gradient of this thread was unscaled here."""
        return getattr(self._local, "unscaled_here", False)

    def note_scaled(self) -> None:
        """Tells that our optimizer has scaled a loss."""
        self._local.scaled = True

    # -- gradients ------------------------------------------------------------------------------------------------

    def seed_of(self, target: Any, given: Any = None) -> Any:
        """Returns the gradient that a pass begins from: the scale, times the one that the script gave."""
        scale = ops.convert_to_tensor(self._ready().dynamic_scale)
        seed = ops.ones_like(target) if given is None else ops.convert_to_tensor(given)
        return ops.cast(ops.cast(seed, "float32") * scale, seed.dtype)

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients divided by the scale, all NaN when one of them is not finite."""
        scale = ops.convert_to_tensor(self._ready().dynamic_scale)
        finite = self._are_finite(gradients)
        factor = ops.where(finite, 1.0 / scale, ops.full_like(scale, float("nan")))
        return [None if g is None else g * ops.cast(factor, g.dtype) for g in gradients]

    # -- steps ----------------------------------------------------------------------------------------------------

    def step(self, gradients: Sequence[Any], update: Callable[[], Any]) -> None:
        """Moves the scale, and updates unless a gradient is not finite."""
        kept = self._ready()

        def take() -> None:
            kept._move(True, gradients)
            update()

        ops.cond(self._are_finite(gradients), take, lambda: kept._move(False))

    def moved(self, gradients: Sequence[Any]) -> bool:
        """Moves the scale and returns whether an optimizer that is not Keras' may step."""
        finite = bool(self._are_finite(gradients))
        self._ready()._move(finite, gradients)
        return finite

    def _are_finite(self, gradients: Sequence[Any]) -> Any:
        found = [ops.all(ops.isfinite(_values(g))) for g in gradients if g is not None]
        return ops.all(ops.stack(found)) if found else ops.convert_to_tensor(True)

    def _ready(self) -> LossScaleOptimizer:
        if self._kept is None:
            with outside_traces():
                kept = LossScaleOptimizer(keras.optimizers.SGD(), settings=self._settings, checks_scaling=False)
                kept.build([])
            self._kept = kept
        return self._kept


def _values(gradient: Any) -> Any:
    """Returns the stored values of a gradient: of TensorFlow's IndexedSlices those of some rows."""
    return gradient.values if hasattr(gradient, "dense_shape") else gradient
