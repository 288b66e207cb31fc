# SPDX-License-Identifier: Apache-2.0
"""The products in a TensorFlow graph, with those in the functions that it calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from floatwise.census import Operator, merged

__all__ = ["graph_operators"]

#: Operators that multiply matrices (tensorflow/core/ops, 2.21), with where their two operands stand among the inputs.
_DOTS = {"MatMul": (0, 1), "BatchMatMul": (0, 1), "BatchMatMulV2": (0, 1), "BatchMatMulV3": (0, 1)}
_CONVOLUTIONS = {
    "Conv1D": (0, 1),
    "Conv2D": (0, 1),
    "Conv3D": (0, 1),
    "Conv": (0, 1),
    "DepthwiseConv2dNative": (0, 1),
}
_INPUT_GRADIENTS = {
    "Conv2DBackpropInput": (2, 1),
    "Conv3DBackpropInputV2": (2, 1),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
}
_FILTER_GRADIENTS = {
    "Conv2DBackpropFilter": (0, 2),
    "Conv3DBackpropFilterV2": (0, 2),
    "DepthwiseConv2dNativeBackpropFilter": (0, 2),
}
_PLACES = {**_DOTS, **_CONVOLUTIONS, **_INPUT_GRADIENTS, **_FILTER_GRADIENTS}


def graph_operators(graph: Any) -> tuple[Operator, ...]:
    """Returns the products of a graph, alike ones counted together; one in a loop counts once.

    Args:
      graph: A `tf.Graph`, such as that of a concrete function. A side that is not known counts as 1: a batch's size is
        a factor of all products of a training step.
    """
    return merged(_of_graph(graph, set()))


def _of_graph(graph: Any, inside: set[str]) -> Iterator[Operator]:
    for operation in graph.get_operations():
        if operation.type == "Einsum" and len(operation.inputs) == 2:
            yield _einsum(operation)
        elif operation.type in _PLACES:
            yield _product(operation)
        for attribute in operation.op_def.attr:
            names = _functions(operation, attribute)
            for name in names - inside:
                function = graph._get_function(name)
                if getattr(function, "graph", None) is not None:
                    yield from _of_graph(function.graph, inside | {name})


def _functions(operation: Any, attribute: Any) -> set[str]:
    if attribute.type == "func":
        return {operation.get_attr(attribute.name).name}
    if attribute.type == "list(func)":
        return {function.name for function in operation.get_attr(attribute.name)}
    return set()


def _product(operation: Any) -> Operator:
    left, right = (operation.inputs[place] for place in _PLACES[operation.type])
    shapes, result = (_shape(left), _shape(right)), _shape(operation.outputs[0])
    return Operator(
        name="dot" if operation.type in _DOTS else "convolution",
        operands=(left.dtype.base_dtype.name, right.dtype.base_dtype.name),
        result=operation.outputs[0].dtype.base_dtype.name,
        shapes=shapes,
        result_shape=result,
        where="",
        multiplications=_multiplications(operation, shapes, result),
        count=1,
    )


def _multiplications(operation: Any, shapes: tuple[tuple[int, ...], ...], result: tuple[int, ...]) -> int:
    kind = operation.type
    if kind == "MatMul":
        return math.prod(result) * shapes[0][-2 if operation.get_attr("transpose_a") else -1]
    if kind in _DOTS:
        return math.prod(result) * shapes[0][-2 if operation.get_attr("adj_x") else -1]
    if kind in _FILTER_GRADIENTS:
        kernel, computed = result, shapes[1]
    else:
        kernel, computed = shapes[1], (shapes[0] if kind in _INPUT_GRADIENTS else result)
    # A depthwise kernel multiplies each channel by itself: [height, width, channels, multiplier].
    per_element = math.prod(kernel[:-2]) if kind.startswith("Depthwise") else math.prod(kernel[:-1])
    return math.prod(computed) * per_element


def _einsum(operation: Any) -> Operator:
    equation = operation.get_attr("equation").decode()
    operands = [_shape(tensor) for tensor in operation.inputs]
    sides: dict[str, int] = {}
    for labels, shape in zip(equation.partition("->")[0].split(","), operands, strict=True):
        # What stands for the batch before the labels is counted as it is.
        for label, side in zip(reversed(labels.replace(".", "")), reversed(shape), strict=False):
            sides[label] = max(side, sides.get(label, 1))
    spare = [shape[: max(0, len(shape) - len(equation.replace(".", "").split(",")[0]))] for shape in operands[:1]]
    left, right = operation.inputs
    return Operator(
        name="dot",
        operands=(left.dtype.base_dtype.name, right.dtype.base_dtype.name),
        result=operation.outputs[0].dtype.base_dtype.name,
        shapes=tuple(operands),
        result_shape=_shape(operation.outputs[0]),
        where="",
        multiplications=math.prod(sides.values()) * math.prod(spare[0]),
        count=1,
    )


def _shape(tensor: Any) -> tuple[int, ...]:
    dimensions = tensor.shape
    return () if dimensions.rank is None else tuple(1 if side is None else int(side) for side in dimensions)
