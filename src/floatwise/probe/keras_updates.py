# SPDX-License-Identifier: Apache-2.0
"""Weights and their gradients at each update of a Keras script."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatwise.probe.keras_paths import Paths
from floatwise.probe.keras_sites import Sites
from floatwise.probe.keras_watching import Watcher
from floatwise.tap.patches import Patches

__all__ = ["UpdateWatch"]


class UpdateWatch:
    """Looks at what every optimizer gets: `weight_grad`, before it is clipped, and `weight`, before the update.

    Args:
      patches: Undo it.
      watcher: Of the backend.
      sites: Get the values.
      paths: Name the variables.
      after: Called after each update, in the thread that makes or traces it.
    """

    def __init__(
        self, patches: Patches, watcher: Watcher, sites: Sites, paths: Paths, after: Callable[[], None]
    ) -> None:
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        self.sizes: dict[str, int] = {}
        self._watcher = watcher
        self._sites = sites
        self._paths = paths
        self._after = after
        self._lock = threading.Lock()
        self._samples: dict[str, NDArray[np.float32]] = {}
        patches.replace(BaseOptimizer, "apply", self._applying)

    def end_iteration(self) -> None:
        """Compares the weights that were heard with those before the last update."""
        with self._lock:
            samples, self._samples = self._samples, {}
        if samples:
            self._sites.log.weights(samples)

    def stepping(self, pairs: Iterable[tuple[Any, Any, Any]]) -> None:
        """Looks at variables that are about to be updated: each with its value and its gradient."""
        weights: dict[str, Any] = {}
        for number, (variable, value, gradient) in enumerate(pairs):
            if gradient is None:
                continue
            name = self._paths.named(variable, number)
            dense = gradient.values if hasattr(gradient, "dense_shape") else gradient  # TensorFlow's IndexedSlices
            if self._watcher.is_floating(value):
                self.sizes[name] = math.prod(int(side) for side in value.shape)
                weights[name] = value
            if self._watcher.is_floating(dense):
                self._watcher.look(dense, self._sites.heard(name, "weight_grad"))
        if weights:
            self._watcher.look_at_all(weights, self._hear)
        self._after()

    def _hear(self, looks: Mapping[str, Any]) -> None:
        for name, (sample, elements, amax) in looks.items():
            self._sites.log.add(name, "weight", sample, elements, amax)
        with self._lock:
            self._samples.update({name: np.array(look[0]) for name, look in looks.items()})

    def _applying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            gradients = list(grads)
            given = None if trainable_variables is None else list(trainable_variables)
            variables = given if given is not None else getattr(optimizer, "_trainable_variables", [])
            self.stepping((v, _value(v), g) for v, g in zip(variables, gradients, strict=False))
            return original(optimizer, gradients, given)

        return apply


def _value(variable: Any) -> Any:
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value
    return value.read_value() if hasattr(value, "read_value") else value
