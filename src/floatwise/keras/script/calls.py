# SPDX-License-Identifier: Apache-2.0
"""What a call of an outermost model is for, and its outputs in float32. Keras is imported when first needed."""

from __future__ import annotations

from typing import Any

__all__ = ["in_float32", "is_symbolic", "trains"]


def is_symbolic(args: Any, kwargs: Any) -> bool:
    """Returns whether a call only finds out shapes and formats, or makes a part of a functional model."""
    import keras
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return in_symbolic_scope() or any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten((args, kwargs)))


def trains(training: bool | None) -> bool:
    """Returns whether a call of an outermost model, which got this argument, is one to train."""
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    from floatwise.keras.script.tracing import under_gradients, under_tape

    if training is None:
        return under_gradients() or in_stateless_scope()
    return training is True or under_tape()


def in_float32(outputs: Any) -> Any:
    """Returns a model's outputs with those in 16 bits cast to float32; masks stay."""
    import keras
    from keras import ops
    from keras.src import backend

    def raised(value: Any) -> Any:
        if not ops.is_tensor(value) or backend.standardize_dtype(value.dtype) not in ("float16", "bfloat16"):
            return value
        mask, after = backend.get_keras_mask(value), ops.cast(value, "float32")
        if mask is not None:
            backend.set_keras_mask(after, mask)
        return after

    return keras.tree.map_structure(raised, outputs)
