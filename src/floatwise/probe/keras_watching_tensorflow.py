# SPDX-License-Identifier: Apache-2.0
"""Tensors of Keras' TensorFlow backend looked at: directly, and by `numpy_function` in what is traced."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from floatwise.probe.keras_watching import Hear
from floatwise.tap.patches import Patches

__all__ = ["TensorFlowWatcher"]


class TensorFlowWatcher:
    """See `floatwise.probe.keras_watching.Watcher`. XLA has no `numpy_function`: nothing is compiled with it."""

    def __init__(self, patches: Patches, sampled: int | None) -> None:
        self._sampled = sampled
        self._here = threading.local()
        patches.replace(tf.GradientTape, "_push_tape", functools.partial(self._counting, 1))
        patches.replace(tf.GradientTape, "_pop_tape", functools.partial(self._counting, -1))
        patches.replace(Function, "__call__", _without_xla)

    def is_training(self) -> bool:
        """Returns whether gradients will be taken of what is computed now."""
        return bool(getattr(self._here, "tapes", 0))

    def is_floating(self, value: Any) -> bool:
        """Returns whether this is a dense tensor of floating point numbers that can be looked at."""
        return isinstance(value, tf.Tensor) and bool(value.dtype.is_floating)

    def look(self, tensor: Any, hear: Hear) -> None:
        """Looks at a tensor."""
        self._tell(tensor, hear)

    def look_at_all(self, tensors: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Looks at several tensors at one time."""
        names = list(tensors)

        def told(*values: Any) -> Any:
            rows = [values[i : i + 3] for i in range(0, len(values), 3)]
            hear({n: (row[0], int(row[1]), float(row[2])) for n, row in zip(names, rows, strict=True)})
            return np.int32(0)

        parts = [part for tensor in tensors.values() for part in self._parts(tensor)]
        _call(told, parts)

    def pass_through(self, tensor: Any, hear: Hear, hear_gradient: Hear) -> Any:
        """Looks at a tensor and its gradient; returns one that is equal."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def same(value: Any) -> Any:
            def backward(gradient: Any) -> Any:
                return _after(self._tell(gradient, hear_gradient), gradient)

            return _after(self._tell(value, hear), value), backward

        made = same(tensor)
        made.set_shape(tensor.shape)
        return made

    def _tell(self, tensor: Any, hear: Hear) -> Any:
        def told(sample: Any, elements: Any, amax: Any) -> Any:
            hear(sample, int(elements), float(amax))
            return np.int32(0)

        return _call(told, self._parts(tensor))

    def _parts(self, tensor: Any) -> list[Any]:
        flat = tf.reshape(tf.stop_gradient(tf.convert_to_tensor(tensor)), [-1])
        flat = flat if flat.dtype == tf.float32 else tf.cast(flat, tf.float32)
        elements = tf.size(flat)
        magnitudes = tf.abs(flat)
        finite = tf.where(tf.math.is_finite(magnitudes), magnitudes, tf.zeros_like(magnitudes))
        amax = tf.maximum(tf.reduce_max(finite), 0.0)  # of no elements it is minus infinity
        if self._sampled is None:
            return [flat, elements, amax]
        stride = tf.where(elements > self._sampled, tf.bitwise.bitwise_or(elements // self._sampled, 1), 1)
        return [flat[::stride], elements, amax]

    def _counting(self, by: int, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def count(tape: Any) -> Any:
            result = original(tape)
            self._here.tapes = getattr(self._here, "tapes", 0) + by
            return result

        return count


def _call(told: Callable[..., Any], parts: list[Any]) -> Any:
    """Calls `told` with the values, now or whenever the function that is being traced runs."""
    if tf.executing_eagerly():
        told(*[part.numpy() for part in parts])
        return None
    return tf.numpy_function(told, parts, tf.int32)


def _after(called: Any, tensor: Any) -> Any:
    with tf.control_dependencies([] if called is None else [called]):
        return tf.identity(tensor)


def _without_xla(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function._jit_compile:
            function._jit_compile = False
        return original(function, *args, **kwargs)

    return call
