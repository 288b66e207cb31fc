# SPDX-License-Identifier: Apache-2.0
"""Variables of 16 bits made float32 where they are: those of layers that were built under a pure 16-bit policy."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["raise_variables"]


def raise_variables(model: Any, optimizer: Any = None) -> int:
    """Makes the float16 and bfloat16 variables of a model and its optimizer float32; returns how many there were.

    They stay the same `keras.Variable` objects, so that whatever refers to them goes on working; the tensors in them
    are new.
    """
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    found = [v for v in {id(v): v for v in variables}.values() if v._dtype in ("float16", "bfloat16")]
    for variable in found:
        value = keras.ops.cast(variable.value, "float32")
        variable._dtype = "float32"
        variable._initialize(value)
    if found and keras.backend.backend() == "torch":
        for layer in model._flatten_layers():
            if layer.built:
                layer._track_variables()  # PyTorch's own list of parameters holds the old tensors
    while found and optimizer is not None:  # TensorFlow's optimizers know variables by their tensors
        if optimizer.built:
            known = optimizer._trainable_variables
            optimizer._trainable_variables_indices = {optimizer._var_key(v): i for i, v in enumerate(known)}
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return len(found)
