# SPDX-License-Identifier: Apache-2.0
"""One training step for loops of one's own, right on every backend: scaled, unscaled, stepped or skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from floatwise.errors import BadInputError

__all__ = ["training_step"]

Step = Callable[[Any, Any], Any]


def training_step(model: Any, loss_fn: Callable[[Any, Any], Any], optimizer: Any = None) -> Step:
    """Returns a function that trains on one batch and returns its loss.

    It does what a loop must not forget: gradients are of `optimizer.scale_loss(loss)`, clipping is left to the inner
    optimizer, which sees unscaled gradients, and on the JAX backend the step is compiled and `stateless_apply` is used.

    ```python
    fw.keras.apply(model, "fp16-mixed")
    step = fw.keras.training_step(model, keras.losses.MeanSquaredError(), model.optimizer)
    for x, y in batches:
        loss = step(x, y)
    ```

    Args:
      model: A built model.
      loss_fn: Of the target and the model's output, as Keras' losses are; returns a number.
      optimizer: The optimizer; the model's own by default.

    Returns:
      A function of inputs and target, arrays whose first axis is the batch; it returns the unscaled loss, with the
      model's own losses (regularizers) in it, float32 of shape [].

    Raises:
      BadInputError: There is no optimizer, or the model is not built.
    """
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    if optimizer is None:
        raise BadInputError("got no optimizer, and a model that is not compiled; give the optimizer, or compile")
    if not model.built:
        raise BadInputError("got a model that is not built; call it on a batch, or model.build(shape), before")
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    def loss_of(y: Any, outputs: Any, losses: list[Any]) -> Any:
        # Kept in float32: a sum over a batch leaves float16's range.
        return ops.cast(loss_fn(y, outputs), "float32") + sum(ops.cast(extra, "float32") for extra in losses)

    make = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}
    return make[keras.backend.backend()](model, loss_of, optimizer)


LossOf = Callable[[Any, Any, list[Any]], Any]


def _on_tensorflow(model: Any, loss_of: LossOf, optimizer: Any) -> Step:
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True), model.losses)
            scaled = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(scaled, [v.value for v in variables]), variables)
        return loss

    return step  # type: ignore[no-any-return]


def _on_torch(model: Any, loss_of: LossOf, optimizer: Any) -> Step:
    import torch

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = loss_of(ops.convert_to_tensor(y), model(x, training=True), model.losses)
        optimizer.scale_loss(loss).backward()
        variables = model.trainable_variables
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in variables], variables)
        return loss.detach()

    return step


def _on_jax(model: Any, loss_of: LossOf, optimizer: Any) -> Step:
    import jax

    def scaled_loss(weights: Any, others: Any, state: Any, x: Any, y: Any) -> Any:
        outputs, others, losses = model.stateless_call(weights, others, x, training=True, return_losses=True)
        loss = loss_of(y, outputs, losses)
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state, strict=True))):
            return optimizer.scale_loss(loss), (loss, others)

    @jax.jit
    def pure_step(weights: Any, others: Any, state: Any, x: Any, y: Any) -> Any:
        grads, (loss, others) = jax.grad(scaled_loss, has_aux=True)(weights, others, state, x, y)
        weights, state = optimizer.stateless_apply(state, grads, weights)
        return loss, weights, others, state

    def step(x: Any, y: Any) -> Any:
        kept = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        loss, *new = pure_step(*([v.value for v in variables] for variables in kept), x, y)
        for variables, values in zip(kept, new, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        return loss

    return step
