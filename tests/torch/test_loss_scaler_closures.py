# SPDX-License-Identifier: Apache-2.0
"""Optimizers that evaluate the loss again while they step, and how to take SAM's two passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.errors import NonFiniteGradientsError
from floatwise.torch import LossScaler

INPUTS = torch.linspace(-1.0, 1.0, 12).reshape(6, 2)
TARGETS = INPUTS.square().sum(dim=1, keepdim=True)


def scaler(scale: float = 2.0**16, **changes: Any) -> LossScaler:
    return LossScaler("cpu", init_scale=scale, **changes)


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, some, others))


class Closure:
    """Evaluates a model's loss.

    Args:
      s: Scales it.
      overflows_at: Scale from which on a gradient is infinite, as in float16.
      from_evaluation: The first evaluation that can overflow.
    """

    def __init__(self, net: nn.Module, s: GradScaler, overflows_at: float = math.inf, from_evaluation: int = 1) -> None:
        self.net, self.scaler = net, s
        self.overflows_at, self.from_evaluation, self.evaluations = overflows_at, from_evaluation, 0

    def __call__(self) -> Any:
        self.evaluations += 1
        self.net.zero_grad()
        loss: Tensor = nn.functional.mse_loss(self.net(INPUTS), TARGETS)
        self.scaler.scale(loss).backward()
        if self.scaler.get_scale() >= self.overflows_at and self.evaluations >= self.from_evaluation:
            next(iter(self.net.parameters())).grad = torch.full((3, 2), math.inf)
        return loss


def lbfgs(net: nn.Module, search: str | None = None) -> Optimizer:
    return torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=6, line_search_fn=search)


class SAM(Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021): the gradient at the worst place nearby moves the weights."""

    def __init__(self, parameters: Any, rho: float = 0.05) -> None:
        super().__init__(parameters, {"rho": rho})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)
        self.moved: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def climb(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        factor = self.defaults["rho"] / nn.utils.get_total_norm([p.grad for p in parameters])
        self.moved = [(p, p.clone()) for p in parameters]
        for parameter in parameters:
            parameter.add_(parameter.grad * factor)

    @torch.no_grad()
    def come_back(self) -> None:
        for parameter, value in self.moved:
            parameter.copy_(value)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is not None
        self.climb()
        loss = closure()
        self.come_back()
        self.base.step()
        return loss


class TestLBFGS:
    @pytest.mark.parametrize("search", [None, "strong_wolfe"])
    @pytest.mark.parametrize("overflows_at", [math.inf, 2.0**12])
    def test_it_steps_as_without_a_scale(self, search: str | None, overflows_at: float) -> None:
        plain, net, s = model(), model(), scaler()
        optimizers = lbfgs(plain, search), lbfgs(net, search)
        closure = Closure(net, s, overflows_at)
        for _ in range(3):
            expected = optimizers[0].step(Closure(plain, GradScaler("cpu", enabled=False)))
            loss = s.step_with_closure(optimizers[1], closure)
            s.update()
            assert s.last_step == "stepped"
            assert torch.equal(loss, torch.as_tensor(expected))
            assert same(weights(net), weights(plain))
        falls = 0 if overflows_at == math.inf else 5
        assert s.get_scale() == 2.0 ** (16 - falls)
        assert s.history == [(1, 2.0 ** (16 - i), 2.0 ** (15 - i), False) for i in range(falls)]
        assert (s.skipped_steps, s.state_dict()["updates"]) == (0, 3)

    @pytest.mark.parametrize("from_evaluation", [1, 3])
    def test_what_is_never_finite_is_skipped_and_the_weights_put_back(self, from_evaluation: int) -> None:
        net, s = model(), scaler(8.0, alarm_after=None)
        optimizer, before = lbfgs(net), weights(net)
        closure = Closure(net, s, 0.0, from_evaluation)
        assert s.step_with_closure(optimizer, closure) is None
        assert same(weights(net), before)
        s.update()
        assert (s.last_step, s.get_scale(), s.skipped_steps) == ("skipped", 1.0, 1)
        assert closure.evaluations == from_evaluation + 3  # at 8, 4, 2 and 1
        s.step_with_closure(optimizer, Closure(net, s))
        s.update()
        plain = model()
        lbfgs(plain).step(Closure(plain, GradScaler("cpu", enabled=False)))
        assert s.last_step == "stepped"
        assert same(weights(net), weights(plain))  # as if it had never been tried

    def test_a_static_scale_is_tried_once(self) -> None:
        net, s = model(), scaler(8.0, dynamic=False)
        closure = Closure(net, s, 8.0)
        s.step_with_closure(lbfgs(net), closure)
        s.update()
        assert (s.last_step, s.get_scale(), closure.evaluations) == ("skipped", 8.0, 1)

    def test_hysteresis_repeats_an_evaluation_before_it_backs_off(self) -> None:
        net, s = model(), scaler(8.0, hysteresis=3)
        closure = Closure(net, s, 8.0)
        s.step_with_closure(torch.optim.LBFGS(net.parameters(), max_iter=1), closure)
        s.update()
        assert (s.last_step, s.get_scale(), closure.evaluations) == ("stepped", 4.0, 4)

    def test_in_float16_autocast(self) -> None:
        net, s = model(), scaler()
        optimizer = lbfgs(net)

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss: Tensor = nn.functional.mse_loss(net(INPUTS), TARGETS)
            s.scale(loss).backward()
            return loss

        losses = []
        for _ in range(4):
            losses.append(s.step_with_closure(optimizer, closure).item())
            s.update()
        assert losses[-1] < losses[0] / 10
        assert s.skipped_steps == 0

    def test_an_error_of_the_closure_leaves_weights_and_scaler_as_before(self) -> None:
        net, s = model(), scaler()
        optimizer, before = lbfgs(net), weights(net)
        good = Closure(net, s)

        def closure() -> Any:
            if good.evaluations == 2:
                raise KeyError("of the closure")
            return good()

        with pytest.raises(KeyError, match="of the closure"):
            s.step_with_closure(optimizer, closure)
        assert same(weights(net), before)
        s.step_with_closure(optimizer, Closure(net, s))
        s.update()
        assert s.last_step == "stepped"


class TestSAM:
    def plain(self, steps: int = 3) -> nn.Module:
        net, off = model(), GradScaler("cpu", enabled=False)
        sam = SAM(net.parameters())
        for _ in range(steps):
            Closure(net, off)()
            sam.step(Closure(net, off))
        return net

    @pytest.mark.parametrize("overflows_at", [math.inf, 2.0**12])
    def test_its_second_pass_is_a_closure(self, overflows_at: float) -> None:
        net, s = model(), scaler()
        sam = SAM(net.parameters())
        steps = 0
        while steps < 3:
            Closure(net, s, overflows_at)()
            s.unscale_(sam)
            s.step_with_closure(sam, Closure(net, s, overflows_at))
            s.update()
            steps += s.last_step == "stepped"
        assert same(weights(net), weights(self.plain()))
        assert s.skipped_steps == (0 if overflows_at == math.inf else 5)

    def test_a_first_pass_that_overflows_skips_the_second(self) -> None:
        net, s = model(), scaler(8.0)
        before, second = weights(net), Closure(net, s)
        sam = SAM(net.parameters())
        Closure(net, s, 8.0)()
        s.unscale_(sam)
        assert s.step_with_closure(sam, second) is None
        s.update()
        assert (s.last_step, s.get_scale(), second.evaluations) == ("skipped", 4.0, 0)
        assert same(weights(net), before)

    def test_a_second_pass_that_is_never_finite_leaves_no_weight_where_it_climbed(self) -> None:
        net, s = model(), scaler(8.0, alarm_after=None)
        before = weights(net)
        sam = SAM(net.parameters())
        Closure(net, s)()
        s.unscale_(sam)
        assert s.step_with_closure(sam, Closure(net, s, 0.0)) is None
        s.update()
        assert (s.last_step, s.get_scale()) == ("skipped", 1.0)
        assert same(weights(net), before)

    @pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
    @pytest.mark.parametrize("bad", [(), (0,), (1,), (2, 5)], ids=str)
    def test_without_a_closure_each_pass_has_its_own_update(self, bad: tuple[int, ...], stock: bool) -> None:
        """The recipe for loops that take the two passes themselves, and for `GradScaler`."""
        net = model()
        s = GradScaler("cpu", init_scale=2.0**16) if stock else scaler()
        sam = SAM(net.parameters())
        passes = iter(range(100))

        def backward() -> bool:
            Closure(net, s, 0.0 if next(passes) in bad else math.inf)()
            s.unscale_(sam.base)
            return not any(found.item() for found in s._found_inf_per_device(sam.base).values())

        steps = 0
        while steps < 3:
            finite = backward()
            s.update()
            if finite:
                sam.climb()
                finite = backward()
                sam.come_back()
                s.step(sam.base)
                s.update()
                steps += finite
        assert same(weights(net), weights(self.plain()))


class TestAnyOptimizer:
    def test_disabled_it_is_the_optimizers_step(self) -> None:
        plain, net, s = model(), model(), LossScaler("cpu", enabled=False)
        lbfgs(plain).step(Closure(plain, s))
        s.step_with_closure(lbfgs(net), Closure(net, s))
        s.update()
        assert same(weights(net), weights(plain))
        assert s.last_step == "stepped"

    @pytest.mark.parametrize("fused", [False, True])
    def test_one_that_needs_no_closure_takes_one(self, fused: bool) -> None:
        plain, net, s = model(), model(), scaler()
        off = GradScaler("cpu", enabled=False)
        torch.optim.AdamW(plain.parameters(), fused=fused).step(Closure(plain, off))
        s.step_with_closure(torch.optim.AdamW(net.parameters(), fused=fused), Closure(net, s, 2.0**12))
        s.update()
        assert same(weights(net), weights(plain))

    def test_beside_another_optimizer(self) -> None:
        nets, s = (model(), model()), scaler()
        searched, other = lbfgs(nets[0]), torch.optim.SGD(nets[1].parameters(), lr=0.1)
        Closure(nets[1], s)()
        s.unscale_(other)
        s.step_with_closure(searched, Closure(nets[0], s, 2.0**12))
        s.step(other)
        s.update()
        plain = model()
        Closure(plain, GradScaler("cpu", enabled=False))()
        torch.optim.SGD(plain.parameters(), lr=0.1).step()
        assert same(weights(nets[1]), weights(plain))

    def test_a_second_step_before_update_is_refused(self) -> None:
        net, s = model(), scaler()
        optimizer = lbfgs(net)
        s.step_with_closure(optimizer, Closure(net, s))
        with pytest.raises(RuntimeError, match="already been called since the last update"):
            s.step_with_closure(optimizer, Closure(net, s))

    def test_a_closure_that_does_not_scale_is_refused(self) -> None:
        net, s = model(), scaler()
        with pytest.raises(AssertionError, match=r"did not use scaler\.scale"):
            s.step_with_closure(lbfgs(net), Closure(net, GradScaler("cpu", enabled=False)))

    def test_the_alarm_names_each_parameter_once(self) -> None:
        net, s = model(), scaler(8.0, alarm_after=1)
        s.watch(net)
        s.step_with_closure(lbfgs(net), Closure(net, s, 0.0))
        with pytest.raises(NonFiniteGradientsError, match=r"1 of 4 gradients.*: 0\.weight \(Linear.*6 infinite of 6"):
            s.update()
