# SPDX-License-Identifier: Apache-2.0
"""What a backend has to offer so that tensors can be looked at: a sample, a size and the largest magnitude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Hear", "Watcher", "make_watcher"]

Hear = Callable[[NDArray[np.float32], int, float], None]
"""Gets the sample, the tensor's elements and its largest finite magnitude, each time the tensor has a value."""


class Watcher(Protocol):
    """Looks at tensors of one backend, in traced functions too; never changes a value."""

    def is_training(self) -> bool:
        """Returns whether gradients will be taken of what is computed now."""

    def is_floating(self, value: Any) -> bool:
        """Returns whether this is a dense tensor of floating point numbers that can be looked at."""

    def look(self, tensor: Any, hear: Hear) -> None:
        """Looks at a tensor."""

    def look_at_all(self, tensors: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Looks at several tensors at one time; `hear` gets (sample, elements, largest magnitude) by name."""

    def pass_through(self, tensor: Any, hear: Hear, hear_gradient: Hear) -> Any:
        """Looks at a tensor and its gradient; what is returned must be used in its place."""


def make_watcher(backend: str, patches: Any, sampled: int | None) -> Watcher:
    """Returns the backend's watcher.

    Args:
      backend: `tensorflow`, `jax` or `torch`.
      patches: Undo what it replaces.
      sampled: Elements that a sample has at most; None for all.
    """
    made: Watcher
    if backend == "tensorflow":
        from floatwise.probe.keras_watching_tensorflow import TensorFlowWatcher

        made = TensorFlowWatcher(patches, sampled)
    elif backend == "jax":
        from floatwise.probe.keras_watching_jax import JaxWatcher

        made = JaxWatcher(patches, sampled)
    else:
        from floatwise.probe.keras_watching_torch import TorchWatcher

        made = TorchWatcher(sampled)
    return made
