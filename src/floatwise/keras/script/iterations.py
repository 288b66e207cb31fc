# SPDX-License-Identifier: Apache-2.0
"""Every training iteration of this process and its loss, whatever way a Keras script trains."""

from __future__ import annotations

import functools
import gc
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from floatwise.keras.script.importing import when_imported
from floatwise.tap.patches import Patches

__all__ = ["Iterations"]

_LOGS, _LOSS = "floatwise_logs", "floatwise_loss"
#: Scaled losses whose unscaled ones are remembered; a loop uses a loss right after it has scaled it.
_REMEMBERED = 16


class Iterations:
    """Hears every training iteration and calls `on_step(key, loss)` at its end, on the backend that Keras has then.

    ```python
    Iterations(self.patches, self.stepped)  # before the script runs; imports neither Keras nor a backend
    ```

    - `fit` and `train_on_batch`: after each call of the train function, when all that it computes is there: between
      two calls of `on_step` there is one whole iteration. The loss is the batch's own, not the mean so far, whose
      tracker stays as it is; XLA, `run_eagerly` and callbacks (called after `on_step`) stay as the script has them.
      With `steps_per_execution` > 1 one call is one iteration of that many batches, and the loss that of the last.
    - Loops of the script's own: after `optimizer.apply`, `apply_gradients` or `stateless_apply` outside of `fit`. The
      loss is what the gradient was taken of since: the target of `tape.gradient` for variables, the tensor of
      `backward`, the value of `value_and_grad` or `grad`; the sum where there are several; NaN where none was seen. In
      a `tf.function` or a jitted function `on_step` is called while it runs, in a thread of the backend, or right
      after it where XLA compiles a `tf.function`; eager JAX is waited for.
    - The torch backend: steps of a `torch.optim.Optimizer` count as well.
    - With `gradient_accumulation_steps` every batch is an iteration, as Keras itself counts it.

    A loss that an optimizer's `scale_loss` has scaled is given unscaled.

    Args:
      patches: Undo everything.
      on_step: Gets what has stepped (the model of a `fit`, the optimizer of a loop; hashable) and the loss. Called in
        any thread; it may wait or end the process.

    Attributes:
      optimizers: Class names of the optimizers that have stepped, of the inner one where one scales the loss.
      fitted: Whether a train function has been called.
    """

    def __init__(self, patches: Patches, on_step: Callable[[Hashable, float], None]) -> None:
        self.optimizers: set[str] = set()
        self.fitted = False
        self._patches = patches
        self._on_step = on_step
        self._here = threading.local()
        self._fitting = 0  # train functions under way, in any thread: replicas step in threads of their own
        self._lost: list[float] = []
        self._scaled: deque[tuple[Any, Any]] = deque(maxlen=_REMEMBERED)
        self._backend: Any = None
        when_imported(patches, "jax", self._prepare_jax)
        when_imported(patches, "keras", self._install)

    @property
    def model_names(self) -> list[str]:
        """Names of the outermost Keras models that are there now, whether they train or not."""
        if "keras" not in sys.modules:
            return []
        import keras

        found = [thing for thing in gc.get_objects() if issubclass(type(thing), keras.Model)]
        inner = {id(child) for model in found for child in model._layers}
        inner |= {id(getattr(model, "_functional", None)) for model in found}  # what a Sequential is made of
        return sorted({str(model.name) for model in found if id(model) not in inner})

    @property
    def models(self) -> int:
        """How many these are."""
        return len(self.model_names)

    # -- what the backends tell -----------------------------------------------------------------------------------

    def unscaled(self, loss: Any) -> Any:
        """Returns the loss that `scale_loss` was given to return this one; None for one that was not scaled."""
        return next((before for scaled, before in self._scaled if scaled is loss), None)

    def heard(self, loss: Any) -> None:
        """A gradient was taken of this (unscaled) loss, a tensor of the backend, possibly one of a traced function."""
        collected = getattr(self._here, "collected", None)
        if collected is not None:
            collected.append(loss)
        elif self._backend is not None:
            self._backend.lost(loss)

    def lost(self, loss: float) -> None:
        """A loss has a value, and the step that uses it is to come."""
        self._lost.append(loss)

    def stepped(self, key: Hashable, loss: float = math.nan) -> None:
        """Something has stepped; with `loss`, it knows its own."""
        lost, self._lost = self._lost, []
        self._on_step(key, sum(lost) if lost and math.isnan(loss) else loss)

    def stepped_by(self, key: Hashable, optimizer: Any) -> None:
        """An optimizer that is not Keras' has stepped."""
        self.optimizers.add(type(optimizer).__name__)
        if getattr(self._here, "collected", None) is None:
            self.stepped(key)

    # -- replacing ------------------------------------------------------------------------------------------------

    def _prepare_jax(self) -> None:
        from floatwise.keras.script.hearing_jax import hear_gradients

        hear_gradients(self._patches, self)  # at once: a script may import their names before it imports Keras

    def _install(self) -> None:
        import keras

        if not str(getattr(keras, "__version__", "")).startswith("3"):
            return
        self._backend = self._backend_of(keras.backend.backend())
        if self._backend is None:
            return
        from keras.src.optimizers.base_optimizer import BaseOptimizer
        from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer as Stock

        from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer as Ours

        for owner in (BaseOptimizer, Stock, Ours):
            for name in ("apply", "stateless_apply"):
                if name in vars(owner):
                    self._patches.replace(owner, name, self._stepping)
            if "scale_loss" in vars(owner):
                self._patches.replace(owner, "scale_loss", self._scaling)
        self._patches.replace(self._backend.trainer, "make_train_function", self._making)

    def _backend_of(self, name: str) -> Any:
        if name == "tensorflow":
            from floatwise.keras.script.hearing_tensorflow import HearingTensorFlow

            return HearingTensorFlow(self._patches, self)
        if name == "jax":
            from floatwise.keras.script.hearing_jax import HearingJax

            return HearingJax(self._patches, self)
        if name == "torch":
            from floatwise.keras.script.hearing_torch import HearingTorch

            return HearingTorch(self._patches, self)
        return None

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale_loss(optimizer: Any, loss: Any) -> Any:
            scaled = original(optimizer, loss)
            if scaled is not loss:
                self._scaled.append((scaled, loss))
            return scaled

        return scale_loss

    def _stepping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "is_stepping", False):
                return original(optimizer, *args, **kwargs)
            self._here.is_stepping = True
            try:
                result = original(optimizer, *args, **kwargs)
            finally:
                self._here.is_stepping = False
            self._scaled.clear()
            self.optimizers.add(type(getattr(optimizer, "inner_optimizer", optimizer)).__name__)
            if getattr(self._here, "collected", None) is None and not self._fitting:
                self._backend.applied(("optimizer", id(optimizer)), result)
            return result

        return apply

    def _making(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make_train_function(model: Any, force: bool = False) -> Any:
            before = model.train_function
            own = vars(model)
            had, kept = "train_step" in own, own.get("train_step")
            own["train_step"] = self._step_heard(model.train_step)
            try:
                result = original(model, force)
            finally:
                if had:
                    own["train_step"] = kept
                else:
                    del own["train_step"]
            if model.train_function is not None and model.train_function is not before:
                model.train_function = self._function_heard(model, model.train_function)
            return result

        return make_train_function

    def _step_heard(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the train step, which a backend may trace: it returns its loss beside its logs."""

        @functools.wraps(step)
        def train_step(*args: Any) -> Any:
            before, self._here.collected = getattr(self._here, "collected", None), []
            try:
                returned = step(*args)
                total = self._backend.total(self._here.collected)
            finally:
                self._here.collected = before
            logs, rest = self._backend.split(returned)
            return self._backend.joined({_LOGS: logs} if total is None else {_LOGS: logs, _LOSS: total}, rest)

        return train_step

    def _function_heard(self, model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the train function, which the host calls."""

        @functools.wraps(function)
        def train_function(*args: Any) -> Any:
            self.fitted = True
            collected: list[Any] = []
            before, self._here.collected = getattr(self._here, "collected", None), collected
            self._fitting += 1
            try:
                returned = function(*args)
            finally:
                self._fitting -= 1
                self._here.collected = before
            outputs, rest = self._backend.split(returned)
            total = self._backend.total(collected)
            logs = outputs
            if isinstance(outputs, dict) and _LOGS in outputs:
                logs = outputs[_LOGS]
                total = outputs.get(_LOSS, total)
            if total is None and isinstance(logs, dict):
                total = logs.get("loss")  # nothing was heard: the mean so far is the next best
            self._backend.wait(returned)
            loss = math.nan if total is None else self._backend.number(total)
            if model.optimizer is not None:
                optimizer = model.optimizer
                self.optimizers.add(type(getattr(optimizer, "inner_optimizer", optimizer)).__name__)
            self.stepped(("model", id(model)), loss)
            return self._backend.joined(logs, rest)

        return train_function
