# SPDX-License-Identifier: Apache-2.0
"""Optimizers of any kind: with closures, in two passes, with habits of their own, and with errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.masters.training import Lion, Sam, SideBySide, parameters, same_bits
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from floatwise.torch.masters import MasterWeights, float32_value, granularity_of


class _Closures:
    """A loss that both trainings evaluate with the same gradients, however often they ask."""

    def __init__(self, training: SideBySide) -> None:
        self.training = training
        self.generator = torch.Generator()

    def of(self, weights: list[nn.Parameter], optimizer: Optimizer) -> Callable[[], Any]:
        self.generator.manual_seed(len(self.training.wide))

        def closure() -> Any:
            assert torch.is_grad_enabled()
            assert all(any(p is q for g in optimizer.param_groups for q in g["params"]) for p in weights)
            optimizer.zero_grad()
            for p in weights:
                grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=self.generator).bfloat16())
                p.grad = grad
            return torch.tensor(1.0)

        return closure

    def train(self, steps: int = 3) -> list[Any]:
        losses = []
        for weights, optimizer in (
            (self.training.wide, self.training.reference),
            (self.training.low, self.training.optimizer),
        ):
            closure = self.of(weights, optimizer)
            losses += [optimizer.step(closure) for _ in range(steps)]
        return losses


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.LBFGS(p, lr=0.01, max_iter=4),
        lambda p: optim.SGD(p, 0.1, momentum=0.9),
        lambda p: optim.AdamW(p, fused=True),
        lambda p: Lion(p),
        lambda p: Sam(p, lambda groups: optim.SGD(groups, 0.1, momentum=0.9)),
    ],
    ids=["LBFGS", "SGD", "AdamW, fused", "a user's", "SAM"],
)
def test_closures(make: Callable[[Any], Optimizer]) -> None:
    training = SideBySide(make, of=parameters([(13, 17), (33,), (), (64,)]))
    losses = _Closures(training).train()
    assert [float(loss) for loss in losses] == [1.0] * 6
    training.check()


def test_a_closure_sees_the_present_weights() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = MasterWeights(optim.LBFGS([weight], lr=0.5, max_iter=3), dtype=torch.bfloat16)
    seen = []

    def closure() -> Any:
        optimizer.zero_grad()
        seen.append(weight.detach().clone())
        loss = weight.float().square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.dtype is torch.bfloat16
    assert len({tuple(s.tolist()) for s in seen}) == len(seen) > 1
    assert weight.detach().abs().max() < 1.0


def test_the_two_passes_of_sam_by_hand() -> None:
    training = SideBySide(lambda p: Sam(p, lambda groups: optim.SGD(groups, 0.1, momentum=0.9)))
    optimizers: tuple[Any, Any] = (training.reference, training.optimizer)
    for _ in range(3):
        training.give_gradients()
        for optimizer in optimizers:
            optimizer.first_step(zero_grad=True)
        assert all(p.grad is None for p in training.low)
        training.check()
        training.give_gradients()
        for optimizer in optimizers:
            optimizer.second_step(zero_grad=True)
    training.check()
    assert granularity_of(training.optimizer.inner) == "all"


def test_the_step_of_the_wrapped_optimizer_itself() -> None:
    training = SideBySide(lambda p: optim.AdamW(p, fused=True))
    training.train(2)
    for _ in range(2):
        training.give_gradients()
        training.reference.step()
        training.optimizer.inner.step()
    training.train(1)
    training.check()


def test_an_optimizer_that_goes_past_its_groups_is_refused() -> None:
    class OwnList(optim.Optimizer):
        def __init__(self, params: list[nn.Parameter]) -> None:
            self.own = params
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for p in self.own:
                p.sub_(1.0)

    training = SideBySide(OwnList, of=parameters([(3,)]))
    training.give_gradients()
    with pytest.raises(ValueError, match="OwnList, which updates parameters that it has not from its param_groups"):
        training.optimizer.step()
    assert training.optimizer.param_groups[0]["params"][0] is training.low[0]


class Replacing(optim.Optimizer):
    """Gives its parameters new tensors, of another format or shape."""

    def __init__(self, params: list[nn.Parameter], change: Callable[[Tensor], Tensor]) -> None:
        self.change = change
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.change(p.data)


def test_an_optimizer_may_put_other_tensors_in_place_but_of_no_other_shape() -> None:
    weight = nn.Parameter(torch.tensor([[0.3, 0.7, 0.1]]))
    own = torch.tensor([[1 / 3, 2 / 3, 1.0]])
    MasterWeights(Replacing([weight], lambda _: own), dtype=torch.bfloat16).step()
    assert torch.equal(float32_value(weight), own)
    assert own.tolist() == torch.tensor([[1 / 3, 2 / 3, 1.0]]).tolist()
    MasterWeights(Replacing([weight], lambda t: t.double() / 3)).step()
    assert torch.equal(float32_value(weight), (own.double() / 3).float())
    with pytest.raises(ValueError, match=r"gives a parameter of shape \(1, 3\) the shape \(3,\)"):
        MasterWeights(Replacing([weight], lambda t: t.flatten())).step()


def test_an_error_within_a_step_leaves_the_parameters_in_their_places() -> None:
    class Fails(optim.Optimizer):
        def __init__(self, params: list[nn.Parameter]) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> Any:
            raise OverflowError("of the optimizer")

    training = SideBySide(Fails)
    before = [training.optimizer.master(p) for p in training.low]
    training.give_gradients()
    with pytest.raises(OverflowError, match="of the optimizer"):
        training.optimizer.step()
    with pytest.raises(OverflowError, match="of the optimizer"):
        training.optimizer.inner.step()
    training.optimizer.zero_grad()
    assert all(p.grad is None for p in training.low)
    assert all(p is q for p, q in zip(training.optimizer.param_groups[0]["params"], training.low, strict=True))
    assert all(same_bits(training.optimizer.master(p), b) for p, b in zip(training.low, before, strict=True))


def test_a_weight_without_gradient_is_not_counted_as_changed() -> None:
    # Autograd refuses a backward pass through a weight that was changed since the forward pass.
    training = SideBySide(lambda p: Lion(p), of=parameters([(3,), (4,)]))
    product = training.low[1] * training.low[1]
    training.train(1, without={1})
    product.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (training.low[0] * training.low[0]).sum().add(_stepped(training)).backward()


def _stepped(training: SideBySide) -> float:
    training.train(1)
    return 0.0
