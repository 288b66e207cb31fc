# SPDX-License-Identifier: Apache-2.0
"""Parameter updates by optimizers, by closures and by hand, and what is one training iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn
from typing_extensions import override

from floatwise.tap.clock import IterationClock
from floatwise.tap.core import Tap
from floatwise.tap.events import Observer


class Watched:
    """A small problem, and the iterations that a clock counts while it is trained."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.clock = IterationClock(lambda index, loss: self.losses.append(loss))
        self.heard = Listener(inspects_values=False)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.x = torch.randn(8, 3)

    def loss(self) -> Tensor:
        output: Tensor = self.model(self.x)
        return output.square().mean()


@pytest.fixture
def watched() -> Iterator[Watched]:
    problem = Watched()
    with Tap([problem.heard, problem.clock]) as tap:
        yield problem
        tap.steps.notice_update_by_hand()


@contextmanager
def after_the_script(problem: Watched) -> Iterator[Tap]:
    """A tap that looks for a last update by hand, as a run does when its script has ended."""
    with Tap([problem.heard, problem.clock]) as tap:
        yield tap
        tap.steps.notice_update_by_hand()


OPTIMIZERS: list[Callable[[list[Tensor]], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.AdamW(p, fused=True),
    lambda p: torch.optim.Adagrad(p),
    lambda p: torch.optim.RMSprop(p, foreach=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_any_optimizer(watched: Watched, make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
    optimizer = make(list(watched.model.parameters()))
    for _ in range(3):
        optimizer.zero_grad()
        watched.loss().backward()
        optimizer.step()
    name = type(optimizer).__name__
    assert watched.heard.of("step_ended") == [(name,)] * 3
    assert watched.clock.optimizers == {name}
    assert watched.clock.iterations == 3


def test_accumulated_losses_are_one_iterations(watched: Watched) -> None:
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.0)
    whole = watched.loss().item()
    for _ in range(2):
        for _ in range(4):
            (watched.loss() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert watched.losses == pytest.approx([whole, whole])
    assert watched.clock.backwards == 8


def test_several_optimizers_in_turn_count_once(watched: Watched) -> None:
    parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (watched.model[0], watched.model[2])]
    for _ in range(3):
        watched.loss().backward()
        for optimizer in parts:
            optimizer.step()
    assert watched.clock.iterations == 3


def test_the_optimizer_that_steps_more_often_counts(watched: Watched) -> None:
    rare, often = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (watched.model[0], watched.model[2]))
    watched.loss().backward()
    rare.step()
    for _ in range(4):
        watched.loss().backward()
        often.step()
    assert watched.clock.iterations == 1 + 3  # its second step without the other makes it the main one


def test_a_second_phase_of_training_counts_on(watched: Watched) -> None:
    for _ in range(2):
        optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.1)
        for _ in range(3):
            watched.loss().backward()
            optimizer.step()
    assert watched.clock.iterations >= 5


def test_a_step_without_any_gradient_is_no_training(watched: Watched) -> None:
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.1)
    optimizer.step()  # silences a scheduler's warning
    assert (watched.clock.iterations, watched.clock.steps_without_gradient) == (0, 1)
    watched.loss().backward()
    optimizer.step()
    assert (watched.clock.iterations, watched.clock.steps_without_gradient) == (1, 1)


def test_gradients_set_by_the_script_are_training(watched: Watched) -> None:
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.1)
    for parameter in watched.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert watched.clock.iterations == 1
    assert math.isnan(watched.losses[0]), "no backward pass has told a loss"


class Counting(Observer):
    """Counts the calls of every closure handed to an optimizer."""

    def __init__(self) -> None:
        self.calls = 0

    @override
    def closure_wrapped(self, closure: Callable[[], object]) -> Callable[[], object]:
        def counted() -> object:
            self.calls += 1
            return closure()

        return counted


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_closure_is_wrapped(by_keyword: bool) -> None:
    problem, counting = Watched(), Counting()
    with Tap([problem.heard, problem.clock, counting]):
        optimizer = torch.optim.LBFGS(problem.model.parameters(), max_iter=4)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = problem.loss()
            loss.backward()
            return loss

        for _ in range(2):
            loss = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
            assert loss is not None
    assert counting.calls == problem.clock.backwards > 2
    assert problem.clock.iterations == 2
    assert problem.heard.names.count("closure_wrapped") == 2


def test_optimizers_of_ones_own_that_extend_torchs(watched: Watched) -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.inner.step()

    optimizer = Lookahead(torch.optim.SGD(watched.model.parameters(), lr=0.1))
    for _ in range(3):
        watched.loss().backward()
        optimizer.step()
    assert watched.clock.iterations == 3


def update_in_place(problem: Watched) -> None:
    with torch.no_grad():
        for parameter in problem.model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
            parameter.grad.zero_()


def update_data(problem: Watched) -> None:
    for parameter in problem.model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
    problem.model.zero_grad()


def update_data_anew(problem: Watched) -> None:
    for parameter in problem.model.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.data - 0.1 * parameter.grad
    problem.model.zero_grad()


@pytest.mark.parametrize("update", [update_in_place, update_data, update_data_anew])
def test_updates_by_hand(update: Callable[[Watched], None]) -> None:
    problem = Watched()
    with after_the_script(problem):
        for _ in range(3):
            problem.loss().backward()
            update(problem)
    assert problem.clock.iterations == 3
    assert problem.clock.optimizers == {"update by hand"}
    assert problem.heard.of("step_ended") == [("by hand",)] * 3


def test_updates_by_hand_after_several_backwards() -> None:
    problem = Watched()
    with after_the_script(problem):
        for _ in range(2):
            for _ in range(3):
                problem.loss().backward()
            update_data(problem)
    assert (problem.clock.iterations, problem.clock.backwards) == (2, 6)


def test_updates_by_hand_from_gradients_asked_for_directly() -> None:
    problem = Watched()
    with after_the_script(problem):
        for _ in range(3):
            parameters = list(problem.model.parameters())
            gradients = torch.autograd.grad(problem.loss(), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(0.1 * gradient)
    assert problem.clock.iterations == 3
    assert all(map(math.isfinite, problem.losses))


def test_an_evaluation_between_backward_and_update_is_no_step() -> None:
    problem = Watched()
    with after_the_script(problem):
        for _ in range(2):
            problem.loss().backward()
            with torch.no_grad():
                for _ in range(5):
                    problem.model(problem.x)
            update_in_place(problem)
            with torch.no_grad():
                problem.model(problem.x)
    assert problem.clock.iterations == 2


def test_gradients_that_are_thrown_away_are_no_step() -> None:
    problem = Watched()
    with after_the_script(problem):
        for _ in range(3):
            problem.loss().backward()
            problem.model.zero_grad()
    assert (problem.clock.iterations, problem.clock.backwards) == (0, 3)


def test_once_an_optimizer_has_stepped_changes_by_hand_are_no_steps(watched: Watched) -> None:
    optimizer = torch.optim.SGD(watched.model.parameters(), lr=0.1)
    for _ in range(3):
        watched.loss().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in watched.model.parameters():
                parameter.clamp_(-1, 1)
    assert watched.clock.iterations == 3
    assert watched.clock.optimizers == {"SGD"}


def test_plain_tensors_without_modules() -> None:
    problem = Watched()
    weight = torch.randn(3, 1, requires_grad=True)
    with after_the_script(problem):
        for _ in range(4):
            problem.x.mm(weight).square().mean().backward()
            assert weight.grad is not None
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
    assert problem.clock.iterations == 4


def test_the_next_phases_optimizer_is_a_new_one_even_at_the_address_of_the_last() -> None:
    clock = IterationClock(lambda index, loss: None)
    for _ in range(20):
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        clock.step_ended(torch.optim.SGD([parameter], lr=0.1))
    assert clock.iterations == 1
