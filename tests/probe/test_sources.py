# SPDX-License-Identifier: Apache-2.0
"""Which products a value comes from, without float32 in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from floatwise.probe.sources import SourceTracer

W = torch.ones(4, 4, requires_grad=True)
Between = Callable[[Tensor, Tensor], Tensor]

FOLLOWED: list[tuple[Between, set[str]]] = [
    (lambda a, b: a, {"a"}),
    (lambda a, b: a.relu(), {"a"}),
    (lambda a, b: F.silu(a) * b, {"a", "b"}),
    (lambda a, b: (a + b).reshape(2, 8).T, {"a", "b"}),
    (lambda a, b: torch.cat([a, b]), {"a", "b"}),
    (lambda a, b: a * 3 + 1, {"a"}),
    (lambda a, b: a * torch.ones(4), {"a"}),
]
FLOAT32: list[Between] = [
    lambda a, b: a.softmax(-1),
    lambda a, b: F.layer_norm(a, (4,)),
    lambda a, b: a.exp(),
    lambda a, b: a.sum(0),
    lambda a, b: a + b.softmax(-1),
    lambda a, b: a + W,  # a float32 parameter
    lambda a, b: a.pow(2),
]


@pytest.fixture
def traced() -> tuple[SourceTracer, Tensor, Tensor]:
    tracer = SourceTracer()
    first, second = torch.ones(4, 4) @ W, torch.ones(4, 4) @ W
    tracer.made("a", [first])
    tracer.made("b", [second])
    return tracer, first, second


@pytest.mark.parametrize(("between", "sources"), FOLLOWED)
def test_code_between_products_is_followed(
    traced: tuple[SourceTracer, Tensor, Tensor], between: Between, sources: set[str]
) -> None:
    tracer, first, second = traced
    assert tracer.sources_of(between(first, second)) == sources


@pytest.mark.parametrize("between", FLOAT32)
def test_what_autocast_makes_float32_has_no_sources(
    traced: tuple[SourceTracer, Tensor, Tensor], between: Between
) -> None:
    tracer, first, second = traced
    assert tracer.sources_of(between(first, second)) == frozenset()


def test_values_from_nowhere(traced: tuple[SourceTracer, Tensor, Tensor]) -> None:
    tracer, _, _ = traced
    assert tracer.sources_of(torch.ones(3)) == frozenset()
    assert tracer.sources_of(W) == frozenset()


def test_an_iteration_is_forgotten(traced: tuple[SourceTracer, Tensor, Tensor]) -> None:
    tracer, first, _ = traced
    tracer.forget()
    assert tracer.sources_of(first) == frozenset()


def test_long_code_is_not_searched_for_ever(traced: tuple[SourceTracer, Tensor, Tensor]) -> None:
    tracer, value, _ = traced
    for _ in range(500):
        value = value + value
    assert tracer.sources_of(value) == frozenset()
