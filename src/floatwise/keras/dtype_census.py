# SPDX-License-Identifier: Apache-2.0
"""Which formats a model really uses: of layers' inputs, outputs and variables, of gradients and optimizer slots."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from floatwise.keras.layer_paths import layer_paths

__all__ = ["Census", "LayerDtypes", "census"]


@dataclass(frozen=True)
class LayerDtypes:
    """The formats of a layer, read from tensors; each is sorted and has no repeats.

    Attributes:
      path: As `floatwise.keras.layer_paths` has it.
      layer: The layer's class.
      inputs: Of what `call` gets, after Keras' cast.
      outputs: Of what `call` returns.
      variables: Of its own variables.
    """

    path: str
    layer: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: tuple[str, ...]


@dataclass(frozen=True)
class Census:
    """What one training batch showed.

    Attributes:
      layers: Those that were called, in the order of the model.
      gradients: The format of each trainable variable's gradient, by the variable's path; empty where it has none.
      slots: The formats of the optimizer's variables of one or more dimensions; empty before it is built.
    """

    layers: tuple[LayerDtypes, ...]
    gradients: dict[str, str]
    slots: tuple[str, ...]


def census(model: Any, batch: Any) -> Census:
    """Returns the formats that occur when a model is trained on a batch. Nothing is changed but random state.

    The model runs eagerly, forward and backward, from the mean square of its outputs.

    Args:
      model: A model; it is built when it was not.
      batch: Its inputs: an array, or nested ones, whose first axis is the batch.
    """
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    if not model.built:
        model(batch)
    kept = [ops.copy(ops.convert_to_tensor(v)) for v in model.non_trainable_variables]
    seen: dict[int, tuple[set[str], set[str]]] = {}
    paths = layer_paths(model)
    with _noting(paths.values(), seen):
        gradients = _gradients(model, batch)
    for variable, value in zip(model.non_trainable_variables, kept, strict=True):
        variable.assign(value)
    layers = tuple(
        LayerDtypes(
            path=path,
            layer=type(layer).__name__,
            inputs=tuple(sorted(seen[id(layer)][0])),
            outputs=tuple(sorted(seen[id(layer)][1])),
            variables=_dtypes(layer._trainable_variables + layer._non_trainable_variables),
        )
        for path, layer in paths.items()
        if id(layer) in seen
    )
    optimizer = getattr(model, "optimizer", None)
    slots = [v for v in optimizer.variables if len(v.shape)] if optimizer is not None else []
    names = [v.path for v in model.trainable_variables]
    found = {n: "" if g is None else _dtype(g) for n, g in zip(names, gradients, strict=True)}
    return Census(layers=layers, gradients=found, slots=_dtypes(slots))


def _dtype(tensor: Any) -> str:
    return str(keras.backend.standardize_dtype(tensor.dtype))


def _dtypes(values: Any) -> tuple[str, ...]:
    return tuple(sorted({_dtype(value) for value in values}))


@contextmanager
def _noting(layers: Any, seen: dict[int, tuple[set[str], set[str]]]) -> Iterator[None]:
    """Notes the formats that pass through each layer's `call`."""

    def noting(layer: Any, call: Any) -> Any:
        @functools.wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            inside, outside = seen.setdefault(id(layer), (set(), set()))
            inside.update(_dtype(x) for x in keras.tree.flatten((args, kwargs)) if ops.is_tensor(x))
            outside.update(_dtype(x) for x in keras.tree.flatten(outputs) if ops.is_tensor(x))
            return outputs

        return noted

    unique = {id(layer): layer for layer in layers}.values()
    try:
        for layer in unique:
            layer.__dict__["call"] = noting(layer, layer.call)
        yield
    finally:
        for layer in unique:
            layer.__dict__.pop("call", None)


def _loss(outputs: Any) -> Any:
    return sum(ops.mean(ops.square(ops.cast(output, "float32"))) for output in keras.tree.flatten(outputs))


def _gradients(model: Any, batch: Any) -> list[Any]:
    """Returns the gradients of the trainable variables; None where there is none."""
    name = keras.backend.backend()
    variables = model.trainable_variables
    if name == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = _loss(model(batch, training=True))
        return list(tape.gradient(loss, [v.value for v in variables]))
    if name == "torch":
        import torch

        loss = _loss(model(batch, training=True))
        return list(torch.autograd.grad(loss, [v.value for v in variables], allow_unused=True))
    import jax

    others = [v.value for v in model.non_trainable_variables]

    def loss_of(weights: Any) -> Any:
        return _loss(model.stateless_call(weights, others, batch, training=True)[0])

    return list(jax.grad(loss_of)([v.value for v in variables]))
