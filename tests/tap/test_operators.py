# SPDX-License-Identifier: Apache-2.0
"""Operators: which are seen, at which site, however they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.tap.listening import Listener
from torch import Tensor, nn

from floatwise.tap.core import Tap
from floatwise.tap.operators import MATRIX_OPERATORS

X = torch.ones(2, 3, 4)
W = torch.ones(4, 4, requires_grad=True)
V = torch.ones(4, requires_grad=True)
B = torch.ones(2, 4, 4, requires_grad=True)
IMAGE = torch.ones(1, 2, 5, 5)
KERNEL = torch.ones(2, 2, 3, 3, requires_grad=True)


OUTSIDE_OF_MODULES: list[tuple[str, Callable[[], object]]] = [
    ("linear", lambda: F.linear(X, W)),
    ("linear", lambda: F.linear(input=X, weight=W)),
    ("matmul", lambda: X @ W),
    ("matmul", lambda: torch.matmul(X, W)),
    ("matmul", lambda: torch.matmul(input=X, other=W)),
    ("matmul", lambda: X.matmul(W)),
    ("mm", lambda: torch.mm(W, mat2=W)),
    ("mm", lambda: W.mm(W)),
    ("bmm", lambda: torch.bmm(X, B)),
    ("bmm", lambda: X.bmm(B)),
    ("mv", lambda: torch.mv(W, V)),
    ("mv", lambda: W.mv(vec=V)),
    ("addmv", lambda: torch.addmv(V, W, V)),
    ("addmm", lambda: torch.addmm(V, mat1=W, mat2=W)),
    ("addmm", lambda: W.addmm(W, W)),
    ("baddbmm", lambda: torch.baddbmm(B, B, B)),
    ("addbmm", lambda: torch.addbmm(W, B, B)),
    ("einsum", lambda: torch.einsum("bij,jk->bik", X, W)),
    ("bilinear", lambda: F.bilinear(X, X, B)),
    ("conv2d", lambda: F.conv2d(IMAGE, KERNEL)),
    ("conv2d", lambda: F.conv2d(input=IMAGE, weight=KERNEL)),
    ("conv_transpose2d", lambda: F.conv_transpose2d(IMAGE, KERNEL)),
    ("scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(X, X, B[:, :3])),
    ("scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(query=B, key=X, value=X)),
    ("softmax", lambda: W.softmax(-1)),
    ("softmax", lambda: torch.softmax(W, -1)),
    ("log_softmax", lambda: F.log_softmax(W, dim=-1)),
    ("cross_entropy", lambda: F.cross_entropy(W, torch.zeros(4, dtype=torch.long))),
    ("mse_loss", lambda: F.mse_loss(input=V, target=torch.zeros(4))),
]


@pytest.mark.parametrize(("operator", "call"), OUTSIDE_OF_MODULES)
def test_functions_and_methods_by_position_and_by_keyword(
    tap: Tap, heard: Listener, operator: str, call: Callable[[], object]
) -> None:
    call()
    assert heard.of("operator_called") == [(f":{operator}", operator)]


INSIDE: list[tuple[nn.Module, tuple[Tensor, ...], list[str]]] = [
    (nn.Linear(4, 2), (X,), [""]),
    (nn.Conv1d(3, 2, 3), (X,), [""]),
    (nn.ConvTranspose1d(3, 2, 3), (X,), [""]),
    (nn.LSTM(4, 5, 2, bidirectional=True), (X,), [""]),
    (nn.GRU(4, 5), (X,), [""]),
    (nn.RNN(4, 5, nonlinearity="relu"), (X,), [""]),
    (nn.LSTMCell(4, 5), (X[0],), [""]),
    (nn.GRUCell(4, 5), (X[0],), [""]),
    (nn.RNNCell(4, 5), (X[0],), [""]),
    (
        nn.MultiheadAttention(4, 2, batch_first=True),
        (X, X, X),
        [":linear", ":bmm", ":softmax", ":bmm#2", ":linear#2"],
    ),
]


@pytest.mark.parametrize(("module", "inputs", "sites"), INSIDE, ids=lambda value: type(value).__name__)
def test_the_product_of_a_module_is_its_own_site(
    tap: Tap, heard: Listener, module: nn.Module, inputs: tuple[Tensor, ...], sites: list[str]
) -> None:
    module(*inputs)
    assert [site for site, _ in heard.of("operator_called")] == sites


def test_attention_computes_the_same_while_it_is_looked_into() -> None:
    attention = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    x, mask = torch.randn(2, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    alone = attention(x, src_mask=mask, is_causal=True)
    with Tap([heard := Listener()]):
        watched = attention(x, src_mask=mask, is_causal=True)
    assert torch.equal(alone, watched)
    assert [site for site, _ in heard.of("operator_called")] == [
        "self_attn:linear",
        "self_attn:scaled_dot_product_attention",
        "self_attn:linear#2",
        "linear1",
        "linear2",
    ]


class Loop(nn.Module):
    """A recurrence written out, with a product and its own weight in one forward."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.weight = steps, nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.tanh(x @ self.weight)
        return x


def test_each_call_of_an_operator_in_one_forward_is_a_site(tap: Tap, heard: Listener) -> None:
    model = nn.Sequential(Loop(3))
    model(X)
    model(X)
    sites = [site for site, _ in heard.of("operator_called")]
    assert sites == ["0", "0:matmul#2", "0:matmul#3"] * 2


def test_a_long_loop_has_a_few_sites(tap: Tap, heard: Listener) -> None:
    Loop(500)(X)
    sites = [site for site, _ in heard.of("operator_called")]
    assert len(sites) == 500
    assert len(set(sites)) == 16


def test_a_functional_script_counts_from_one_in_every_step(tap: Tap, heard: Listener) -> None:
    first = torch.randn(4, 3, requires_grad=True)
    second = torch.randn(3, 1, requires_grad=True)
    for _ in range(2):
        (X[0].mm(first).relu().mm(second)).sum().backward()
    assert [site for site, _ in heard.of("operator_called")] == [":mm", ":mm#2"] * 2


def test_arithmetic_that_prepares_data_is_no_site(tap: Tap, heard: Listener) -> None:
    data = torch.randn(5, 3) @ torch.randn(3, 4)
    (data @ W).sum().backward()
    assert heard.of("operator_called") == [(":matmul", "matmul")]


def test_a_frozen_model_is_inspected_all_the_same(tap: Tap, heard: Listener) -> None:
    nn.Linear(4, 2).requires_grad_(False)(X)
    assert [operator for _, operator in heard.of("operator_called")] == ["linear"]


def test_the_script_may_have_function_modes_of_its_own(tap: Tap, heard: Listener) -> None:
    with torch.device("meta"):
        layer = nn.Linear(4, 2)
        layer(torch.randn(2, 4))
    assert heard.of("operator_called") == [("", "linear")]


def test_names_of_matrix_operators_are_the_functions_own() -> None:
    for function, name in MATRIX_OPERATORS.items():
        assert name in str(getattr(function, "__name__", function)).replace("__matmul__", "matmul").replace(
            "__rmatmul__", "matmul"
        )


def test_arithmetic_is_seen_by_its_operators_and_methods() -> None:
    seen: list[str] = []

    class Sums(Listener):
        def operator_called(self, site: str, operator: str, *rest: object) -> None:
            seen.append(operator)

    weight = torch.ones(2, requires_grad=True)
    with Tap([Sums()]):
        value = 2.0 * weight + 1e-9
        value = (value - weight) / 3
        value = 1 - 1 / value
        value *= 2
        value.masked_fill(torch.tensor([True, False]), -1e9).mean()
    assert seen == ["mul", "add", "sub", "div", "div", "sub", "mul", "masked_fill", "mean"]
