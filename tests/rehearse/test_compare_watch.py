# SPDX-License-Identifier: Apache-2.0
"""The first operator that makes infinities or NaN: found, named with its module and pass, and not where it is legal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from floatwise.rehearse.module_trace import ModuleTrace, sampled
from floatwise.rehearse.nonfinite import NonFinite
from floatwise.rehearse.watch import OperatorWatch


class Inner(nn.Module):
    """Runs a function of its input and one weight."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight.to(x.dtype))


def watched(function: Callable[[Tensor], Tensor], x: Tensor, backward: bool = False) -> NonFinite | None:
    """Returns what is found in `model[1]`, which lies between two harmless modules."""
    model = nn.Sequential(nn.Identity(), Inner(function), Inner(lambda y: y))
    trace = ModuleTrace(model)
    with OperatorWatch(trace) as watch:
        loss = model(x).float().sum()
        if backward:
            loss.backward()
        finite = bool(torch.isfinite(loss))
    trace.close()
    found: NonFinite | None = watch.first(finite)
    return found


LARGE = torch.full((4,), 300.0, dtype=torch.float16)


@pytest.mark.parametrize(
    ("function", "operator", "result"),
    [
        (lambda x: x * x, "mul", "inf"),
        (lambda x: (x * x).rsqrt(), "mul", "inf"),  # zero again, and the loss is finite
        (lambda x: x.exp(), "exp", "inf"),
        (lambda x: x.clone().mul_(1000.0), "mul_", "inf"),
        (lambda x: torch.outer(x, x) @ x, "mul", "inf"),
        (lambda x: (x.float() * 1e4).half(), "_to_copy", "inf"),
        (lambda x: (x - 400.0).sqrt(), "sqrt", "nan"),
        (lambda x: -(x * 2.0) * x, "mul", "-inf"),
    ],
)
def test_names_operator_and_module_of_the_forward_pass(
    function: Callable[[Tensor], Tensor], operator: str, result: str
) -> None:
    found = watched(function, LARGE)
    assert found is not None
    assert (found.module, found.operator, found.phase, found.result) == ("1", operator, "forward", result)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.masked_fill(torch.tensor([True, False, False, False]), -torch.inf).softmax(-1),
        lambda x: (x + torch.tensor([-torch.inf, 0.0, 0.0, 0.0], dtype=x.dtype)).softmax(-1),
        lambda x: torch.where(torch.tensor([True, False, True, True]), x, -torch.inf).softmax(-1),
        # Two masks with the most negative number: infinite, and exactly as good as one.
        lambda x: (x + torch.tensor([-65504.0, 0, 0, 0], dtype=x.dtype) * 2).softmax(-1),
        lambda x: x + torch.empty(4, dtype=x.dtype).fill_(torch.nan).zero_(),
    ],
)
def test_leaves_legal_infinities_alone(function: Callable[[Tensor], Tensor]) -> None:
    assert watched(function, LARGE) is None


def test_a_row_that_is_masked_as_a_whole_is_a_fault() -> None:
    found = watched(lambda x: x.masked_fill(torch.ones(4, dtype=torch.bool), -torch.inf).softmax(-1), LARGE)
    assert found is not None
    assert (found.operator, found.result) == ("_softmax", "nan")


def test_names_the_module_of_the_backward_pass() -> None:
    # The gradient of a square root at zero.
    found = watched(lambda x: (x - x.detach()).sqrt() + x, LARGE.clone(), backward=True)
    assert found is not None
    assert (found.module, found.phase) == ("1", "backward")


def test_tells_what_follows_a_product_and_how_large_its_inputs_were() -> None:
    found = watched(lambda x: (x[None] @ x[:, None]) / 8.0, LARGE)
    assert found is not None
    assert (found.operator, found.follower, found.factor, found.input_amax) == ("mm", "div", 1 / 8, 300.0)


def test_what_float32_does_too_is_not_counted() -> None:
    model = Inner(lambda x: x * x * 1e38)
    trace = ModuleTrace(model)
    with OperatorWatch(trace) as first:
        model(LARGE.float())
    with OperatorWatch(trace, known=frozenset(first.sites)) as second:
        model(LARGE.float())
    assert first.first(True) is not None
    assert second.first(True) is None


def test_counts_the_flops_of_each_module_as_pytorch_does() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 2)))
    trace, x = ModuleTrace(model), torch.randn(3, 4)
    with OperatorWatch(trace, survey=True) as watch:
        model(x).sum().backward()
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    assert sum(watch.flops.values()) == counter.get_total_flops()
    # Forward and the weight's gradient; the second layer also passes a gradient on.
    assert watch.flops == {"0": 2 * 2 * 3 * 4 * 8, "1.0": 3 * 2 * 3 * 8 * 2}


def test_trace_names_shared_modules_once_and_leaves_no_hooks() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, shared)
    trace = ModuleTrace(model, samples=True)
    model(torch.ones(1, 2))
    trace.close()
    assert list(trace.calls) == [("0", 0), ("0", 1), ("", 0)]
    assert not shared._forward_hooks
    assert not shared._forward_pre_hooks


def test_samples_are_strided_copies() -> None:
    values = torch.arange(10_000.0)
    some = sampled(values, 100)
    assert some.tolist() == values[::101].tolist()
    assert sampled(values[:5]).tolist() == values[:5].tolist()
