# SPDX-License-Identifier: Apache-2.0
"""Keras' optimizers in loops of the script's own: they skip bad steps, and the script's loss scale gives way."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from floatwise.errors import PlanError
from floatwise.keras.loss_scale_optimizer import LossScaleOptimizer
from floatwise.keras.script.run_scale import RunScale
from floatwise.tap.frames import users_line
from floatwise.tap.patches import Patches

__all__ = ["skip_bad_steps"]

_WRITE_STEP = (
    "got {what} of the script's own on the {backend} backend under a plan with float16: {why}. Write the step with "
    "floatwise.keras.training_step(model, loss_fn, optimizer), use model.fit, or train with a bfloat16 plan "
    "(--recipe bf16-mixed)"
)
_JAX_LOOP = "its state, which the script hands from step to step, has no loss scale in it"
_REPLICAS = "whether to skip a step would have to be decided by all replicas together"


def skip_bad_steps(
    patches: Patches, scale: RunScale, is_scaling: Callable[[], bool], tell: Callable[[str, str, str], None]
) -> None:
    """Replaces what steps an optimizer outside of a loss-scale optimizer of ours.

    Args:
      patches: Takes the replacements.
      scale: The loss scale of the script's loops.
      is_scaling: Whether anything computes in float16 by now.
      tell: Gets the kind, the line and what of the script is replaced.
    """
    backend = keras.backend.backend()
    # Optimizers that another one has decided to step; not by thread: TensorFlow's replicas have threads of their own.
    decided: Counter[int] = Counter()

    def step_inner(optimizer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inner = id(getattr(optimizer, "inner_optimizer", optimizer))
        decided[inner] += 1
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            decided[inner] -= 1

    def within(original: Callable[..., Any]) -> Callable[..., Any]:
        """Our optimizer decides by itself, but for gradients that were unscaled in the loop."""

        @functools.wraps(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if backend != "jax" and is_scaling() and scale.has_unscaled:
                return optimizer.inner_optimizer.apply(*args, **kwargs)
            return step_inner(optimizer, original, *args, **kwargs)

        return apply

    def scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def ours(optimizer: Any, loss: Any) -> Any:
            scale.note_scaled()
            return original(optimizer, loss)

        return ours

    def skipping(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if not is_scaling() or decided[id(optimizer)] or not len(grads):
                return original(optimizer, grads, trainable_variables)
            if backend == "jax":
                raise PlanError(_WRITE_STEP.format(what="a loop", backend=backend, why=_JAX_LOOP))
            _refuse_replicas(backend)
            grads = list(grads)
            variables = None if trainable_variables is None else list(trainable_variables)
            if not optimizer.built and variables is not None:
                optimizer.build(variables)  # before the branch: nothing can be made within one
            return scale.step(grads, lambda: original(optimizer, grads, variables))

        return apply

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def stateless_apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            scales_itself = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            if is_scaling() and not decided[id(optimizer)] and not scales_itself:
                raise PlanError(_WRITE_STEP.format(what="a loop", backend=backend, why=_JAX_LOOP))
            return step_inner(optimizer, original, *args, **kwargs)

        return stateless_apply

    patches.replace(LossScaleOptimizer, "apply", within)
    patches.replace(LossScaleOptimizer, "scale_loss", scale_loss)
    patches.replace(BaseOptimizer, "apply", skipping)
    for owner in (LossScaleOptimizer, keras.optimizers.LossScaleOptimizer, BaseOptimizer):
        if backend == "jax":
            patches.replace(owner, "stateless_apply", refusing)
    if backend != "jax":
        _replace_stock(patches, is_scaling, tell)


def _replace_stock(patches: Patches, is_scaling: Callable[[], bool], tell: Callable[[str, str, str], None]) -> None:
    """Makes Keras' own loss-scale optimizer, where the script uses it, hand on losses and gradients as they are."""
    stock = keras.optimizers.LossScaleOptimizer

    def scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unscaled(optimizer: Any, loss: Any) -> Any:
            if isinstance(optimizer, LossScaleOptimizer):
                return original(optimizer, loss)
            tell("found_grad_scaler", users_line() or "", type(optimizer).__name__)
            return loss

        return unscaled

    def apply(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def handed_on(optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
            if isinstance(optimizer, LossScaleOptimizer):
                return original(optimizer, grads, trainable_variables)
            return optimizer.inner_optimizer.apply(grads, trainable_variables)

        return handed_on

    patches.replace(stock, "scale_loss", scale_loss)
    patches.replace(stock, "apply", apply)


def _refuse_replicas(backend: str) -> None:
    if backend == "tensorflow":
        import tensorflow as tf

        if tf.distribute.has_strategy() and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise PlanError(_WRITE_STEP.format(what="a distributed loop", backend=backend, why=_REPLICAS))
