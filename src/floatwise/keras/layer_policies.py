# SPDX-License-Identifier: Apache-2.0
"""Sets the policy of a layer that exists already, with all that Keras derived from the old one."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["hand_on_ids", "is_quantized", "set_policy"]


def is_quantized(layer: Any) -> bool:
    """Returns whether `model.quantize` has changed the layer, whose policy then says how."""
    return layer.dtype_policy.quantization_mode is not None


def set_policy(layer: Any, name: str) -> None:
    """Gives a layer a policy of its own.

    Args:
      layer: The layer, built or not. A share in a `DTypePolicyMap` ends: its keys are paths, which change when a file
        is loaded.
      name: Keras' name of the policy.
    """
    policy = keras.DTypePolicy(name)
    if isinstance(layer._dtype_policy, keras.dtype_policies.DTypePolicyMap):
        layer._dtype_policy = policy
    else:
        layer.dtype_policy = policy
    if isinstance(layer, keras.layers.Normalization) and layer.built:
        _renew_statistics(layer)


def hand_on_ids(layer: Any) -> bool:
    """Keeps Keras from casting what a layer around an `Embedding` is called with; returns whether it is one.

    Token ids are often float32, as `Input((length,))` makes them. Keras casts them before the layer's own `call`, and
    in bfloat16 an id above 256 becomes another. An `Embedding` by itself is never given cast ids (autocast=False in
    keras 3.15.1, layers/core/embedding.py); layers inside cast for themselves.
    """
    around = not isinstance(layer, (keras.Model, keras.layers.Embedding)) and any(
        isinstance(inner, keras.layers.Embedding) for inner in layer._flatten_layers(include_self=False)
    )
    if around:
        layer._convert_input_args = False
    return around


def _renew_statistics(layer: Any) -> None:
    """Makes the mean and variance anew, which `Normalization` keeps in its compute format."""
    if layer.input_mean is None:
        layer.finalize_state()
    else:
        layer.build(**(layer._build_shapes_dict or {}))
