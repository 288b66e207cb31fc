# SPDX-License-Identifier: Apache-2.0
"""What a model's optimizer says about its loss scale, as Python numbers, also during `fit` on the JAX backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
from floatwise.keras.scale_moves import Memory

__all__ = ["ScaleState", "computes_in_float16", "read_state", "times_wrapped"]


@dataclass(frozen=True)
class ScaleState:
    """The state of a loss scale.

    Attributes:
      scale: What the next loss is multiplied by; None when the optimizer scales no loss.
      iterations: Steps that were made.
      floor: Below which the scale does not fall; 0 for Keras' own optimizer, which has none.
      zero_share: The share of zeros among the gradients of the last step; None where it is not known.
    """

    scale: float | None
    iterations: int
    floor: float
    zero_share: float | None


def read_state(model: Any) -> ScaleState:
    """Returns the state of the optimizer of a model. Waits for the device."""
    optimizer = model.optimizer
    if not optimizer.built:
        return ScaleState(None, 0, 0.0, None)
    values = _newest(model, optimizer)
    inner = optimizer
    while (deeper := getattr(inner, "inner_optimizer", None)) is not None:
        inner = deeper
    steps = int(_number(inner._iterations, values))
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return ScaleState(None, steps, 0.0, None)
    scale = float(_number(optimizer.dynamic_scale, values))
    if not isinstance(optimizer, LossScaleOptimizer):
        return ScaleState(scale, steps, 0.0, None)
    memory = Memory(*_number(optimizer.scale_memory, values).tolist())
    floor = optimizer.settings.floor if optimizer.settings.mode == "dynamic" else scale
    return ScaleState(scale, steps, floor, memory.zero_share)


def computes_in_float16(model: Any) -> list[str]:
    """Returns the names of the layers that compute in float16."""
    layers = model._flatten_layers()
    return [layer.name for layer in layers if layer._trainable_variables and layer.compute_dtype == "float16"]


def times_wrapped(optimizer: Any) -> int:
    """Returns how many loss-scale optimizers are around an optimizer, one within the other."""
    count = 0
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        count, optimizer = count + 1, optimizer.inner_optimizer
    return count


def _newest(model: Any, optimizer: Any) -> dict[int, Any]:
    """Returns the values that `fit` on JAX holds outside of the variables until the epoch ends, by variable."""
    state = getattr(model, "_jax_state", None)
    if not state or model._jax_state_synced or state.get("optimizer_variables") is None:
        return {}
    return {id(v): value for v, value in zip(optimizer.variables, state["optimizer_variables"], strict=True)}


def _number(variable: Any, values: dict[int, Any]) -> Any:
    return ops.convert_to_numpy(values.get(id(variable), variable))
