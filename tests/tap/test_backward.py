# SPDX-License-Identifier: Apache-2.0
"""Backward passes: every form of the call, what observers may change, and the leaves of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from floatwise.tap.backward import leaves_of
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer


def two_losses() -> tuple[nn.Linear, Tensor, Tensor]:
    layer = nn.Linear(3, 1)
    return layer, layer(torch.randn(4, 3)).mean(), layer(torch.randn(4, 3)).square().mean()


FORMS: list[tuple[int, Callable[[nn.Linear, Tensor, Tensor], object]]] = [
    (1, lambda layer, a, b: a.backward()),
    (1, lambda layer, a, b: a.backward(torch.tensor(2.0))),
    (1, lambda layer, a, b: a.backward(retain_graph=True)),
    (1, lambda layer, a, b: a.backward(inputs=[layer.weight])),
    (1, lambda layer, a, b: torch.autograd.backward(a)),
    (1, lambda layer, a, b: torch.autograd.backward(tensors=a)),
    (2, lambda layer, a, b: torch.autograd.backward([a, b])),
    (2, lambda layer, a, b: torch.autograd.backward((a, b), grad_tensors=[torch.tensor(1.0)] * 2)),
]


@pytest.mark.parametrize(("roots", "call"), FORMS)
def test_every_form_of_the_call(
    tap: Tap, heard: Listener, roots: int, call: Callable[[nn.Linear, Tensor, Tensor], object]
) -> None:
    layer, first, second = two_losses()
    heard.events.clear()
    call(layer, first, second)
    assert heard.events == [("backward_starts", roots), ("backward_ended", roots)]
    assert layer.weight.grad is not None


@pytest.mark.parametrize(("roots", "call"), FORMS)
def test_gradients_are_those_of_the_script_alone(
    roots: int, call: Callable[[nn.Linear, Tensor, Tensor], object]
) -> None:
    gradients = []
    for observers in ([], [Listener()]):
        torch.manual_seed(1)
        with Tap(observers):
            layer, first, second = two_losses()
            call(layer, first, second)
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad)
    assert torch.equal(gradients[0], gradients[1])


class Doubling(Observer):
    """Begins every backward pass from twice the loss, as a loss scale does."""

    @override
    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        return [2 * root for root in roots]


def test_an_observer_may_begin_from_other_tensors() -> None:
    weight = torch.ones(2, requires_grad=True)
    heard = Listener()
    with Tap([Doubling(), Doubling(), heard]):
        weight.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0, 4.0]
    assert heard.names == ["backward_starts", "backward_ended"]


def test_a_backward_that_fails(tap: Tap, heard: Listener) -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()
    assert heard.names[-2:] == ["backward_starts", "backward_failed"]
    torch.ones(1, requires_grad=True).sum().backward()
    assert heard.names[-1] == "backward_ended", "the next one is heard again"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_within_one_backward(tap: Tap, heard: Listener, reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(2, 4, requires_grad=True)
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    assert heard.names.count("backward_starts") == 1
    assert heard.names.count("backward_ended") == 1


def test_a_backward_inside_of_a_backward_is_part_of_it(tap: Tap, heard: Listener) -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).sum().backward()
            return gradients[0]

    Nested.apply(torch.ones(2, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert heard.names == ["backward_starts", "backward_ended"]


def test_edges_of_a_graph_pass_unheard(tap: Tap, heard: Listener) -> None:
    weight = torch.ones(2, requires_grad=True)
    edge = torch.autograd.graph.get_gradient_edge(weight.sum())
    torch.autograd.backward(edge)
    assert weight.grad is not None
    assert heard.events == []
    assert torch.autograd.grad(torch.autograd.graph.get_gradient_edge(weight.sum()), weight)
    assert heard.events == []


def test_gradients_of_leaves_asked_for_directly_are_a_backward(tap: Tap, heard: Listener) -> None:
    weight = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.square().sum(), weight)
    assert gradient.tolist() == [2.0, 2.0]
    assert heard.names == ["backward_ended"]


@pytest.mark.parametrize("create_graph", [True, False])
def test_a_gradient_penalty_is_none(tap: Tap, heard: Listener, create_graph: bool) -> None:
    weight = torch.ones(2, requires_grad=True)
    inner = weight * 2
    loss = inner.square().sum()
    if create_graph:
        torch.autograd.grad(loss, weight, create_graph=True)
    else:
        torch.autograd.grad(loss, inner)  # not a leaf
    assert {"backward_starts", "backward_ended"}.isdisjoint(heard.names)


def test_leaves_in_the_order_of_the_graph() -> None:
    first, second, third = (torch.ones(1, requires_grad=True) for _ in range(3))
    loss = third * (second + first).sum()
    assert {id(leaf) for leaf in leaves_of([loss.sum()])} == {id(first), id(second), id(third)}
    assert list(leaves_of([first])) == [first]
    assert list(leaves_of([torch.ones(1)])) == []


def test_the_search_for_leaves_ends() -> None:
    weight = torch.ones(1, requires_grad=True)
    value = weight
    for _ in range(200):
        value = value + weight
    assert len(list(leaves_of([value]))) == 1
    assert len(list(leaves_of([value], most_nodes=10))) <= 1
