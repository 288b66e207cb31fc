# SPDX-License-Identifier: Apache-2.0
"""Sides and FLOPs of Keras' products agree with those that PyTorch's probe finds for the same ones."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from floatwise.probe.flops import matrix_shape
from floatwise.probe.keras_shapes import product_shape, recurrent_shape


def of(*shape: int | None) -> Any:
    return SimpleNamespace(shape=shape)


#: Operator, operands, result; the same in PyTorch: operator, operands and result, where their layouts differ.
SAME = [
    ("matmul", (of(4, 8), of(8, 16)), of(4, 16), "linear", (of(4, 8), of(16, 8)), of(4, 16)),
    ("matmul", (of(2, 3, 8), of(2, 8, 5)), of(2, 3, 5), "matmul", (of(2, 3, 8), of(2, 8, 5)), of(2, 3, 5)),
    ("einsum", ("abc,cde->abde", of(4, 6, 16), of(16, 2, 8)), of(4, 6, 2, 8), "einsum", None, None),
    ("einsum", ("aecd,abcd->acbe", of(2, 7, 3, 8), of(2, 5, 3, 8)), of(2, 3, 5, 7), "einsum", None, None),
    ("conv", (of(2, 8, 8, 3), of(3, 3, 3, 16)), of(2, 6, 6, 16), "conv2d", (of(2, 3, 8, 8), of(16, 3, 3, 3)), None),
    ("conv", (of(2, 9, 4), of(3, 2, 8)), of(2, 7, 8), "conv1d", (of(2, 4, 9), of(8, 2, 3)), None),
    (
        "conv_transpose",
        (of(2, 4, 4, 3), of(2, 2, 8, 3)),
        of(2, 8, 8, 8),
        "conv_transpose2d",
        (of(2, 3, 4, 4), of(3, 8, 2, 2)),
        of(2, 8, 8, 8),
    ),
    (
        "dot_product_attention",
        (of(2, 5, 3, 8), of(2, 7, 3, 8), of(2, 7, 3, 8)),
        of(2, 5, 3, 8),
        "scaled_dot_product_attention",
        (of(2, 3, 5, 8), of(2, 3, 7, 8), of(2, 3, 7, 8)),
        of(2, 3, 5, 8),
    ),
]


@pytest.mark.parametrize(("name", "operands", "result", "same", "same_operands", "same_result"), SAME)
def test_flops_and_inner_length_are_those_of_the_same_product_in_pytorch(
    name: str, operands: Any, result: Any, same: str, same_operands: Any, same_result: Any
) -> None:
    there = matrix_shape(same, same_operands or operands, same_result or result)
    here = product_shape(name, operands, result, channels_first=False)
    assert here is not None
    assert there is not None
    assert round(here.element_flops * math.prod(result.shape)) == there.flops
    if name not in ("conv_transpose", "dot_product_attention"):
        assert (here.n, here.k) == (there.n, there.k)


def test_an_unknown_batch_changes_nothing() -> None:
    known = product_shape("conv", (of(4, 8, 8, 3), of(3, 3, 3, 16)), of(4, 6, 6, 16), False)
    unknown = product_shape("conv", (of(None, 8, 8, 3), of(3, 3, 3, 16)), of(None, 6, 6, 16), False)
    assert known == unknown


def test_a_depthwise_convolution_sums_over_its_window_alone() -> None:
    shape = product_shape("depthwise_conv", (of(2, 8, 8, 4), of(3, 3, 4, 2)), of(2, 6, 6, 8), False)
    assert shape is not None
    assert (shape.n, shape.k, shape.element_flops) == (8, 9, 18.0)


def test_a_transposed_convolution_counts_inputs_in_either_layout() -> None:
    last = product_shape("conv_transpose", (of(2, 4, 4, 3), of(2, 2, 8, 3)), of(2, 8, 8, 8), False)
    first = product_shape("conv_transpose", (of(2, 3, 4, 4), of(2, 2, 8, 3)), of(2, 8, 8, 8), True)
    assert last == first


def test_a_recurrent_layer_counts_both_of_its_kernels() -> None:
    shape = recurrent_shape([of(5, 32), of(8, 32), of(32)])
    assert shape is not None
    assert (shape.n, shape.k, shape.width) == (32, 5, 8)
    rows = 6
    assert shape.element_flops * rows * shape.width == 2 * rows * (5 * 32 + 8 * 32)


@pytest.mark.parametrize("operands", [(of(3, 4),), ("ij,jk", of(2, 3), of(3, 4)), ("...i,i->...", of(2, 3), of(3))])
def test_what_cannot_be_told_has_no_shape(operands: Any) -> None:
    assert product_shape("einsum", operands, of(2), False) is None
