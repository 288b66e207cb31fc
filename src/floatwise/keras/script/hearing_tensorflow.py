# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow backend's losses and steps: eager, in a `tf.function`, and in one that XLA compiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from floatwise.tap.patches import Patches

__all__ = ["HearingTensorFlow"]


class HearingTensorFlow:
    """Replaces what gradients are taken with; see `floatwise.keras.script.iterations`.

    Args:
      patches: Undo it.
      iterations: Is told.
    """

    def __init__(self, patches: Patches, iterations: Any) -> None:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

        self.trainer = TensorFlowTrainer
        self._iterations = iterations
        self._pending: list[Any] = []
        self._cells: list[tuple[Any, Callable[[float], None]]] = []
        patches.replace(tf.GradientTape, "gradient", self._gradient)
        patches.replace(Function, "__call__", self._function_called)

    def lost(self, loss: Any) -> None:
        """Keeps a loss for the step to come, and has it told where that step is in another function."""
        if tf.executing_eagerly():
            self._iterations.lost(self.number(loss))
            return
        self._pending.append(loss)
        self._tell(loss, self._iterations.lost)

    def applied(self, key: Hashable, _: Any) -> None:
        """An optimizer's `apply` has returned."""
        pending, self._pending = self._pending, []
        if tf.executing_eagerly():
            self._iterations.stepped(key)
            return
        total = self.total(pending)
        self._tell(math.nan if total is None else total, lambda loss: self._iterations.stepped(key, loss))

    def total(self, losses: list[Any]) -> Any:
        """Returns the sum of the losses that may be used here, None for none."""
        usable = [_scalar(loss) for loss in losses if _is_in_reach(loss)]
        return functools.reduce(lambda a, b: a + b, usable) if usable else None

    def split(self, returned: Any) -> tuple[Any, Any]:
        """Returns a train function's logs and the rest."""
        return returned, None

    def joined(self, logs: Any, rest: Any) -> Any:
        """Returns what `split` has split."""
        return logs

    def wait(self, returned: Any) -> None:
        """Nothing to do: reading the loss waits for what was scheduled before."""

    def number(self, loss: Any) -> float:
        """Returns a loss as a number."""
        return float(np.sum(np.asarray(loss, dtype=np.float64)))

    def _gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tape, target, sources, *args, **kwargs)
            if any(isinstance(getattr(s, "value", s), tf.Variable) or hasattr(s, "handle") for s in _flat(sources)):
                for loss in _flat(target):
                    unscaled = self._iterations.unscaled(loss)
                    self._iterations.heard(loss if unscaled is None else unscaled)
            return result

        return tf.autograph.experimental.do_not_convert(gradient)  # type: ignore[no-any-return]

    def _tell(self, loss: Any, hear: Callable[[float], None]) -> None:
        """Has the function that is being traced call `hear` with the loss whenever it runs."""
        loss = _scalar(loss)
        if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):

            def told(value: Any) -> Any:
                hear(float(value))
                return np.int32(0)

            tf.numpy_function(told, [loss], tf.int32)
            return
        # XLA calls nothing in Python: the function counts, and is asked when it has returned.
        with tf.init_scope():
            # Made without the creators of `tf.function`, which allow variables in a first call alone.
            cell = ResourceVariable(np.zeros(2, np.float32), trainable=False)
        self._cells.append((cell, hear))
        cell.assign(tf.stack([cell[0] + 1.0, loss]))

    def _function_called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(function, *args, **kwargs)
            if self._cells and tf.executing_eagerly():
                for cell, hear in list(self._cells):
                    count, loss = cell.numpy().tolist()
                    if count:
                        cell.assign(tf.zeros([2], tf.float32))
                        for _ in range(int(count)):
                            hear(loss)
            return result

        return called


def _flat(values: Any) -> list[Any]:
    return tf.nest.flatten(values)  # type: ignore[no-any-return]


def _scalar(loss: Any) -> Any:
    return tf.reduce_sum(tf.cast(loss, tf.float32))


def _is_in_reach(loss: Any) -> bool:
    """Returns whether a tensor may be used in the graph that is being made now."""
    graph = getattr(loss, "graph", None) if not hasattr(loss, "numpy") else None
    if graph is None:
        return True
    here: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while here is not None:
        if here is graph:
            return True
        here = getattr(here, "outer_graph", None)
    return False
