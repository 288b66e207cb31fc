# SPDX-License-Identifier: Apache-2.0
"""Shapes and FLOPs of matrix operators, against shapes worked out by hand and against PyTorch's own counter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from floatwise.probe.flops import MatrixShape, matrix_shape
from floatwise.tap import Observer, attach

# m, n, k, FLOPs of one forward call.
Expected = tuple[int, int, int, int]


def t(*shape: int) -> Tensor:
    return torch.ones(shape)


SHAPES: list[tuple[str, tuple[Any, ...], tuple[int, ...], Expected]] = [
    ("linear", (t(5, 8), t(3, 8)), (5, 3), (5, 3, 8, 240)),
    ("linear", (t(2, 5, 8), t(3, 8), t(3)), (2, 5, 3), (10, 3, 8, 480)),
    ("linear", (t(8), t(3, 8)), (3,), (1, 3, 8, 48)),
    ("linear", (t(5, 8), t(8)), (5,), (5, 1, 8, 80)),
    ("mm", (t(5, 8), t(8, 3)), (5, 3), (5, 3, 8, 240)),
    ("bmm", (t(2, 5, 8), t(2, 8, 3)), (2, 5, 3), (10, 3, 8, 480)),
    ("mv", (t(5, 8), t(8)), (5,), (5, 1, 8, 80)),
    ("matmul", (t(5, 8), t(8, 3)), (5, 3), (5, 3, 8, 240)),
    ("matmul", (t(4, 2, 5, 8), t(8, 3)), (4, 2, 5, 3), (40, 3, 8, 1920)),
    ("matmul", (t(8), t(8)), (), (1, 1, 8, 16)),
    ("matmul", (t(8), t(8, 3)), (3,), (1, 3, 8, 48)),
    ("addmm", (t(3), t(5, 8), t(8, 3)), (5, 3), (5, 3, 8, 240)),
    ("addmv", (t(5), t(5, 8), t(8)), (5,), (5, 1, 8, 80)),
    ("baddbmm", (t(2, 5, 3), t(2, 5, 8), t(2, 8, 3)), (2, 5, 3), (10, 3, 8, 480)),
    ("addbmm", (t(5, 3), t(2, 5, 8), t(2, 8, 3)), (5, 3), (10, 3, 8, 480)),
    ("bilinear", (t(5, 4), t(5, 6), t(3, 4, 6)), (5, 3), (20, 3, 6, 720)),
    ("einsum", ("ij,jk->ik", t(5, 8), t(8, 3)), (5, 3), (5, 3, 8, 240)),
    ("einsum", ("bij, bjk -> bik", [t(2, 5, 8), t(2, 8, 3)]), (2, 5, 3), (10, 3, 8, 480)),
    ("einsum", ("ij,jk", t(5, 8), t(8, 3)), (5, 3), (5, 3, 8, 240)),
    ("einsum", ("i,i->", t(8), t(8)), (), (1, 1, 8, 16)),
    ("einsum", ("ij,jk->ik", t(5, 8), t(1, 3)), (5, 3), (5, 3, 8, 240)),
    ("conv1d", (t(2, 4, 10), t(6, 4, 3)), (2, 6, 8), (16, 6, 12, 2304)),
    ("conv2d", (t(2, 4, 6, 6), t(8, 4, 3, 3)), (2, 8, 4, 4), (32, 8, 36, 18432)),
    ("conv2d", (t(1, 4, 6, 6), t(8, 2, 3, 3)), (1, 8, 4, 4), (16, 8, 18, 4608)),
    ("conv3d", (t(1, 1, 3, 3, 3), t(2, 1, 3, 3, 3)), (1, 2, 1, 1, 1), (1, 2, 27, 108)),
    ("conv_transpose1d", (t(2, 4, 8), t(4, 6, 3)), (2, 6, 10), (16, 18, 4, 2304)),
    (
        "scaled_dot_product_attention",
        (t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 8)),
        (2, 3, 5, 8),
        (30, 7, 8, 6720),
    ),
    (
        "scaled_dot_product_attention",
        (t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 4)),
        (2, 3, 5, 4),
        (30, 7, 8, 5040),
    ),
    ("lstm_cell", (t(5, 8), [t(5, 3), t(5, 3)], t(12, 8), t(12, 3), t(12), t(12)), (5, 3), (5, 12, 8, 1320)),
    ("gru_cell", (t(5, 8), t(5, 3), t(9, 8), t(9, 3), t(9), t(9)), (5, 3), (5, 9, 8, 990)),
    ("rnn_tanh_cell", (t(8, 8), t(8, 8), t(8, 8), t(8, 8)), (8, 8), (8, 8, 8, 2048)),
    ("lstm", (t(7, 5, 8), [t(1, 5, 3), t(1, 5, 3)], [t(12, 8), t(12, 3), t(12), t(12)]), (7, 5, 3), (35, 12, 8, 9240)),
    ("gru", (t(7, 5, 8), t(1, 5, 3), [t(9, 8), t(9, 3), t(9), t(9)]), (7, 5, 3), (35, 9, 8, 6930)),
]


@pytest.mark.parametrize(("operator", "args", "out", "expected"), SHAPES, ids=lambda v: v if isinstance(v, str) else "")
def test_shapes(operator: str, args: tuple[Any, ...], out: tuple[int, ...], expected: Expected) -> None:
    shape = matrix_shape(operator, args, t(*out))
    assert shape == MatrixShape(*expected)


UNKNOWN: list[tuple[str, tuple[Any, ...]]] = [
    ("linear", ()),
    ("linear", (t(2, 3),)),
    ("matmul", (t(2, 3),)),
    ("conv2d", (t(1, 2, 3, 3),)),
    ("addmm", (t(2), t(2, 2))),
    ("scaled_dot_product_attention", (t(2, 3), t(2, 3))),
    ("bilinear", (t(2, 3), t(2, 3))),
    ("einsum", (t(2, 2), [0, 1], t(2, 2), [1, 2], [0, 2])),
    ("einsum", ("...i,ij->...j", t(2, 2), t(2, 2))),
    ("einsum", ("ij,jk,kl->il", t(2, 2), t(2, 2), t(2, 2))),
    ("einsum", ("ii->i", t(2, 2))),
    ("lstm", (t(2, 2),)),
    ("lstm_cell", (t(2, 2),)),
    ("softmax", (t(2, 2),)),
    ("add", (t(2, 2), t(2, 2))),
]


@pytest.mark.parametrize(("operator", "args"), UNKNOWN)
def test_what_cannot_be_told_is_none(operator: str, args: tuple[Any, ...]) -> None:
    assert matrix_shape(operator, args, t(2, 2)) is None


def test_an_output_without_a_shape() -> None:
    assert matrix_shape("linear", (t(5, 8), t(3, 8)), None) == MatrixShape(5, 3, 8, 240)


def test_ragged_sides_are_not_counted() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    assert matrix_shape("linear", (ragged, t(3, 4)), ragged) is None


class Counting(Observer):
    """Adds up the FLOPs of every matrix operator that is called."""

    inspects_values = True

    def __init__(self) -> None:
        self.flops = 0

    @override
    def operator_called(
        self, site: str, operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        shape = matrix_shape(operator, args, output)
        self.flops += shape.flops if shape is not None else 0


MODELS: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
    (nn.Linear(8, 3), (t(5, 8),)),
    (nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=2), (t(2, 4, 9, 9),)),
    (nn.Conv2d(4, 8, 3, groups=4), (t(2, 4, 9, 9),)),
    (nn.ConvTranspose2d(4, 8, 3, stride=2), (t(2, 4, 5, 5),)),
    (nn.ConvTranspose1d(4, 8, 3, groups=2), (t(2, 4, 5),)),
    (nn.MultiheadAttention(8, 2, batch_first=True), (t(2, 5, 8),) * 3),
    (nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (t(2, 5, 8), t(2, 7, 8))),
    (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (t(3, 8),)),
]


@pytest.mark.parametrize(("model", "inputs"), MODELS, ids=lambda value: type(value).__name__)
def test_models_have_the_flops_that_pytorch_counts(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    counting = Counting()
    # Attention written out in products: fused on a CPU, PyTorch's counter does not know it.
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as theirs:
        model(*inputs)
    with attach(counting):
        model(*inputs)
    assert counting.flops == theirs.get_total_flops()


def test_functional_attention_as_pytorch_counts() -> None:
    q, k, v = t(2, 3, 5, 8), t(2, 3, 7, 8), t(2, 3, 7, 4)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as theirs:
        output = F.scaled_dot_product_attention(q, k, v)
    shape = matrix_shape("scaled_dot_product_attention", (q, k, v), output)
    assert shape is not None
    assert shape.flops == theirs.get_total_flops()
