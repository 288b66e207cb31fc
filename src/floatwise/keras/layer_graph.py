# SPDX-License-Identifier: Apache-2.0
"""Which layers read a model's inputs as they are, and which make its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

__all__ = ["Place", "passes_on", "places"]

# Layers that hand values on: moved, dropped or picked at most.
_PASSING = tuple(
    getattr(keras.layers, name)
    for name in (
        "Concatenate Cropping1D Cropping2D Cropping3D Dropout Flatten Identity Masking Permute RepeatVector Reshape "
        "SpatialDropout1D SpatialDropout2D SpatialDropout3D ZeroPadding1D ZeroPadding2D ZeroPadding3D"
    ).split()
)

_INPUT = None  # stands for the model's inputs among the layers before a layer


@dataclass
class Place:
    """Where in a model a layer is.

    Attributes:
      reads_input: Whether a value of the model's inputs arrives unchanged.
      makes_output: Whether what it computes leaves the model, unchanged but for layers that pass values on.
    """

    reads_input: bool = False
    makes_output: bool = False


def places(model: Any) -> dict[int, Place]:
    """Returns where each layer of a model is, by the layer's id.

    Functional models tell by their graph and Sequential ones by their order; nested ones are looked into. Of a
    subclassed model nothing is known: its last layer is taken for the one that makes the output.
    """
    found: dict[int, Place] = {}
    _note(model, found, reads=True, makes=True)
    return found


def passes_on(layer: Any) -> bool:
    """Returns whether a layer hands on the values it gets, without arithmetic."""
    if isinstance(layer, keras.layers.Activation):
        return getattr(layer.activation, "__name__", "") == "linear"
    return isinstance(layer, _PASSING)


def _note(layer: Any, found: dict[int, Place], reads: bool, makes: bool) -> None:
    place = found.setdefault(id(layer), Place())
    place.reads_input |= reads
    place.makes_output |= makes
    children = [child for child in layer._layers if not isinstance(child, keras.layers.InputLayer)]
    if isinstance(layer, keras.Sequential):
        order = [(child, [children[number - 1] if number else _INPUT]) for number, child in enumerate(children)]
        ends = {id(child) for child in children[-1:]}
    elif hasattr(layer, "_nodes_by_depth"):
        order = _graph_order(layer)
        tensors = [tensor._keras_history for tensor in keras.tree.flatten(layer.outputs)]
        made_by = _layers_of(history.operation._inbound_nodes[history.node_index] for history in tensors)
        ends = {id(child) for child in made_by}
    else:
        order = [(child, []) for child in children]
        ends = {id(child) for child in children[-1:]}
    fed: dict[int, bool] = {}
    for child, before in order:
        fed[id(child)] = reads and any(b is _INPUT or (fed.get(id(b), False) and passes_on(b)) for b in before)
    making: dict[int, bool] = {}
    for number, (child, _) in reversed(list(enumerate(order))):
        following = [after for after, before in order[number + 1 :] if any(b is child for b in before)]
        passed = any(passes_on(after) and making[id(after)] for after in following)
        making[id(child)] = makes and (id(child) in ends or passed)
    for child, _ in order:
        _note(child, found, fed[id(child)], making[id(child)])


def _graph_order(model: Any) -> list[tuple[Any, list[Any]]]:
    """Returns the layers of a functional model in an order of computation, each with what is before it."""
    before: dict[int, tuple[Any, list[Any]]] = {}
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            operation = node.operation
            if isinstance(operation, keras.layers.InputLayer) or not isinstance(operation, keras.Layer):
                continue
            _, known = before.setdefault(id(operation), (operation, []))
            known += _layers_of(node.parent_nodes)
    return list(before.values())


def _layers_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yields the layers that nodes are calls of, through operations that are no layers, such as `x + y`."""
    for node in nodes:
        if isinstance(node.operation, keras.layers.InputLayer):
            yield _INPUT
        elif isinstance(node.operation, keras.Layer):
            yield node.operation
        else:
            yield from _layers_of(node.parent_nodes)
