# SPDX-License-Identifier: Apache-2.0
"""The formats of a model's products in a training step: as its backend is asked for them, and as they run."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from floatwise.census import OperatorCensus, compiled_operators
from floatwise.census.stablehlo import stablehlo_operators

__all__ = ["operator_dtypes"]


def operator_dtypes(model: Any, batch: Any, compiled: bool = True) -> OperatorCensus:
    """Returns the formats of all matrix products and convolutions of a model's forward and backward pass.

    The loss is the mean square of the outputs. On TensorFlow and JAX the step is traced and not run; on PyTorch it is
    run, and only random state changes.

    * TensorFlow: the graph says what is asked for. Its own kernels compute that; where `compile()` has chosen XLA
      (`jit_compile`), XLA's optimised program says what runs.
    * JAX: the lowered program says what is asked for, XLA's optimised one what runs.
    * PyTorch: the operators that are called compute what is asked for.

    Args:
      model: A built model.
      batch: Its inputs: an array, or nested ones, whose first axis is the batch.
      compiled: Whether to compile for XLA, which takes as long as a first step. Default: True.
    """
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    if not model.built:
        model(batch)
    of_backend = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}
    return of_backend[keras.backend.backend()](model, batch, compiled)


def _loss(outputs: Any) -> Any:
    return sum(ops.mean(ops.square(ops.cast(output, "float32"))) for output in keras.tree.flatten(outputs))


def _on_tensorflow(model: Any, batch: Any, compiled: bool) -> OperatorCensus:
    import tensorflow as tf

    from floatwise.keras.tensorflow_graph import graph_operators

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(model(inputs, training=True))
        return [g for g in tape.gradient(loss, [v.value for v in model.trainable_variables]) if g is not None]

    uses_xla = bool(getattr(model, "jit_compile", False))
    function = tf.function(step, autograph=False, jit_compile=uses_xla)
    traced = graph_operators(function.get_concrete_function(batch).graph)
    facts = None
    if compiled and uses_xla:
        facts = compiled_operators(function.experimental_get_compiler_ir(batch)(stage="optimized_hlo"))
    backend = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
    return OperatorCensus(traced=traced, compiled=facts, backend=backend)


def _on_jax(model: Any, batch: Any, compiled: bool) -> OperatorCensus:
    import jax

    def loss_of(weights: Any, others: Any, inputs: Any) -> Any:
        return _loss(model.stateless_call(weights, others, inputs, training=True)[0])

    # Shapes alone: while `fit` runs on JAX, variables have no values.
    variables = (
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in kind]  # type: ignore[no-untyped-call]
        for kind in (model.trainable_variables, model.non_trainable_variables)
    )
    lowered = jax.jit(jax.grad(loss_of)).lower(*variables, batch)
    facts = compiled_operators(lowered.compile().as_text() or "") if compiled else None
    return OperatorCensus(traced=stablehlo_operators(lowered.as_text()), compiled=facts, backend=jax.default_backend())


def _on_torch(model: Any, batch: Any, compiled: bool) -> OperatorCensus:
    from floatwise.keras.torch_operators import ProductsCalled

    kept = [ops.copy(ops.convert_to_tensor(v)) for v in model.non_trainable_variables]
    with ProductsCalled() as called:
        loss = _loss(model(batch, training=True))
        loss.backward()
    model.zero_grad()
    for variable, value in zip(model.non_trainable_variables, kept, strict=True):
        variable.assign(value)
    return OperatorCensus(traced=called.operators, compiled=None, backend=loss.device.type.replace("cuda", "gpu"))
