# SPDX-License-Identifier: Apache-2.0
"""The products of the model that a script trains, from what it was first called with."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["StepCensus"]

#: Rows of a batch whose size is not known while a step is traced; shares of products do not depend on it.
_ROWS = 8


class StepCensus:
    """Remembers the first model that is trained under the plan, and the shapes of its inputs."""

    def __init__(self) -> None:
        self._model: weakref.ref[Any] | None = None
        self._inputs: Any = None

    def note(self, model: Any, inputs: Any) -> None:
        """Takes an outermost model and the inputs of its first training call: tensors, traced or not, nested."""
        import keras

        if self._model is None:
            self._model = weakref.ref(model)
            self._inputs = keras.tree.map_structure(_shape_and_dtype, inputs)

    def to_message(self) -> dict[str, Any] | None:
        """Returns what `floatwise.planner.decision.Products` holds, as JSON; None where it cannot be traced again."""
        model = self._model() if self._model is not None else None
        if model is None:
            return None
        import keras
        import numpy as np

        from floatwise.keras.operator_census import operator_dtypes

        try:
            batch = keras.tree.map_structure(
                lambda leaf: leaf if leaf is None else np.zeros(leaf.shape, leaf.dtype), self._inputs
            )
            return operator_dtypes(model, batch).to_message()
        except Exception:  # of whatever the script's model does with zeros: the training was measured all the same
            return None


def _shape_and_dtype(tensor: Any) -> Any:
    if not hasattr(tensor, "shape"):
        return None
    import keras

    shape = tuple(_ROWS if side is None else int(side) for side in tensor.shape)
    return _Shaped(shape, keras.backend.standardize_dtype(tensor.dtype))


class _Shaped:
    """Shape and dtype of a tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
