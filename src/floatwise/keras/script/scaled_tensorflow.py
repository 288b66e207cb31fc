# SPDX-License-Identifier: Apache-2.0
"""The gradients that a script takes with a TensorFlow tape, of the scaled loss and unscaled again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from floatwise.keras.script.run_scale import RunScale
from floatwise.tap.patches import Patches

__all__ = ["scale_gradients"]


def scale_gradients(patches: Patches, scale: RunScale, is_scaling: Callable[[], bool]) -> None:
    """Replaces `GradientTape.gradient` for gradients of variables.

    Args:
      patches: Takes the replacement.
      scale: The loss scale.
      is_scaling: Whether anything computes in float16 by now.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
            if not is_scaling() or not _has_variables(sources) or scale.is_scaled_elsewhere():
                return original(tape, target, sources, output_gradients, **options)
            given = tf.nest.flatten(output_gradients) if output_gradients is not None else None
            targets = tf.nest.flatten(target)
            flat = [
                None if each is None else scale.seed_of(each, given[number] if given else None)
                for number, each in enumerate(targets)
            ]
            seeds = tf.nest.pack_sequence_as(target, flat) if tf.nest.is_nested(target) else flat[0]
            found = original(tape, target, sources, seeds, **options)
            return tf.nest.pack_sequence_as(sources, _unscaled(scale, tf.nest.flatten(found)))

        return tf.autograph.experimental.do_not_convert(gradient)  # type: ignore[no-any-return]

    patches.replace(tf.GradientTape, "gradient", make)


def _has_variables(sources: Any) -> bool:
    return any(
        isinstance(getattr(each, "value", each), tf.Variable) or isinstance(each, tf.Variable)
        for each in tf.nest.flatten(sources)
    )


def _unscaled(scale: RunScale, found: list[Any]) -> list[Any]:
    dense = [each.values if isinstance(each, tf.IndexedSlices) else each for each in found]
    return [
        tf.IndexedSlices(new, old.indices, old.dense_shape) if isinstance(old, tf.IndexedSlices) else new
        for old, new in zip(found, scale.unscaled(dense), strict=True)
    ]
