# SPDX-License-Identifier: Apache-2.0
"""Several optimizers, in turn or together; frozen parts; optimizers that evaluate the loss themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.torch.loop_parts import (
    AUTOCAST,
    OPTIMIZERS,
    batches,
    loss_of,
    model,
    overflowing,
    prepared,
    same,
    scaled,
    sgd,
    train_step,
    weights,
)
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, SGD, Optimizer

from floatwise.errors import BadInputError
from floatwise.torch import Precision


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def optimizers(self) -> tuple[Optimizer, Optimizer]:
        return sgd(self.generator), sgd(self.critic)

    def loss(self, noise: Tensor, real: Tensor, of_critic: bool) -> Tensor:
        fake, true = self.critic(torch.cat([self.generator(noise), real])).float().chunk(2)
        loss: Tensor = fake.mean() - true.mean() if of_critic else -fake.mean()
        return loss


def gan_by_hand(gan: Gan, name: str, steps: int) -> None:
    generator, critic = gan.optimizers()
    scaler = GradScaler("cpu", enabled=name == "fp16-mixed")
    dtype = AUTOCAST[name]
    for noise, real in gan_batches(steps):
        for own in (critic, generator):
            generator.zero_grad()
            critic.zero_grad()
            with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                loss = gan.loss(noise, real, own is critic)
            scaler.scale(loss).backward()
            scaler.step(own)
            scaler.update()


def gan_batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 8, generator=generator)) for _ in range(steps)]


class TestInTurn:
    @pytest.mark.parametrize("name", AUTOCAST)
    def test_a_gan_is_a_hand_written_loop_bit_for_bit(self, name: str) -> None:
        by_hand, ours = Gan(), Gan()
        gan_by_hand(by_hand, name, 4)
        generator, critic = ours.optimizers()
        stepped = 0
        with prepared(ours, [generator, critic], name) as precision:
            for noise, real in gan_batches(4):
                for own in (critic, generator):
                    precision.zero_grad()
                    with precision.forward():
                        loss = ours.loss(noise, real, own is critic)
                    precision.backward(loss)
                    stepped += precision.step(optimizer=own).stepped
        assert stepped >= 6  # of 8; in float16 the first scale is too large
        assert same(weights(ours), weights(by_hand))

    @pytest.mark.parametrize("name", ["fp32", "fp16-mixed"])
    @pytest.mark.parametrize("limit", [None, 1.0])
    def test_the_others_do_not_move_and_are_not_clipped(self, name: str, limit: float | None) -> None:
        net = model()
        first, second = sgd(net[0]), sgd(net[2])
        with prepared(net, [first, second], name) as precision:
            before = weights(net)
            precision.backward(sum((100 * p.sum() for p in net.parameters()), torch.zeros(())))
            info = precision.step(optimizer=first, clip_norm=limit)
            if limit:
                assert info.grad_norm == pytest.approx(100 * math.sqrt(32 * 33))
            moved = [not torch.equal(a, b) for a, b in zip(before, weights(net), strict=True)]
            assert moved == [True, True, False, False]
            assert precision.step(optimizer=[second]).stepped
            torch.testing.assert_close(before[2] - weights(net)[2], torch.full((32, 32), 10.0))

    def test_gradients_waiting_for_their_step_follow_the_scale(self) -> None:
        net = model()
        first, second = sgd(net[0]), sgd(net[2])
        with prepared(net, [first, second], scaled(2.0**10)) as precision:
            before = weights(net)
            precision.backward(net.get_parameter("2.weight").sum() + overflowing(net))
            assert precision.step(optimizer=first).loss_scale == 2.0**9
            info = precision.step(optimizer=second)
            assert (info.stepped, info.loss_scale) == (True, 2.0**9)
            torch.testing.assert_close(before[2] - weights(net)[2], torch.full((32, 32), 0.1))

    @pytest.mark.parametrize("unscaled", [False, True])
    def test_an_optimizer_that_accumulates_longer_than_another(self, unscaled: bool) -> None:
        """The first steps four times, with an overflow in between; the second once, with the sum of four."""
        net = model()
        first, second = sgd(net[0]), sgd(net[2])
        with prepared(net, [first, second], scaled(2.0**10)) as precision:
            before = weights(net)
            for number in range(4):
                precision.backward(
                    net.get_parameter("2.weight").sum()
                    + (overflowing(net) if number == 1 else net.get_parameter("0.weight").sum())
                )
                if unscaled and number == 3:
                    precision.unscale()
                assert precision.step(optimizer=first).stepped == (number != 1)
                first.zero_grad()
            assert precision.step(optimizer=second).stepped
            torch.testing.assert_close(before[2] - weights(net)[2], torch.full((32, 32), 0.4))

    def test_one_that_was_not_prepared_is_refused(self) -> None:
        net = model()
        with prepared(net, sgd(net), "fp32") as precision:
            with pytest.raises(BadInputError, match="got SGD, an optimizer that was not given to prepare"):
                precision.step(optimizer=sgd(net))
            with pytest.raises(BadInputError, match="got no optimizer of those"):
                precision.step(optimizer=[])


class TestTogether:
    def test_a_parameter_in_two_optimizers_is_stepped_in_turn_only(self) -> None:
        net = model()
        first, second = sgd(net), sgd(net[2])
        with prepared(net, [first, second], scaled()) as precision:
            precision.backward(net.get_parameter("2.weight").sum())
            with pytest.raises(BadInputError, match=r"in turn, with step\(optimizer=\.\.\.\)"):
                precision.step()
            before = net.get_parameter("2.weight").detach().clone()
            assert precision.step(optimizer=first).stepped
            torch.testing.assert_close(before - net.get_parameter("2.weight"), torch.full((32, 32), 0.1))

    @pytest.mark.parametrize("name", AUTOCAST)
    def test_frozen_parts_stay_and_may_be_in_the_optimizer(self, name: str) -> None:
        net = model()
        net[0].requires_grad_(False)
        optimizer = OPTIMIZERS["AdamW"](net)
        with prepared(net, optimizer, name) as precision:
            before = weights(net)
            assert all(train_step(precision, net, batch) for batch in batches(2))
            assert [torch.equal(a, b) for a, b in zip(before, weights(net), strict=True)] == [True, True, False, False]
            net[0].requires_grad_(True)
            assert train_step(precision, net, batches(1)[0])
            assert not torch.equal(before[0], net.get_parameter("0.weight"))


def lbfgs(net: nn.Module) -> LBFGS:
    return LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")


class Sam(SGD):
    """Sharpness-aware minimisation (Foret et al. 2021): the gradient is that of a point a little uphill."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is not None
        loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        kept = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p in parameters:
                p.add_(p.grad * 0.05 / norm)
        closure()
        with torch.no_grad():
            for p, value in zip(parameters, kept, strict=True):
                p.copy_(value)
        super().step()
        return loss


CLOSURES: dict[str, Callable[[nn.Module], Optimizer]] = {"LBFGS": lbfgs, "SAM": lambda net: Sam(net.parameters(), 0.1)}


class TestClosures:
    @pytest.mark.parametrize("kind", CLOSURES)
    @pytest.mark.parametrize("name", AUTOCAST)
    def test_it_is_a_hand_written_loop_bit_for_bit(self, name: str, kind: str) -> None:
        by_hand, ours = model(), model()
        optimizer: Any = CLOSURES[kind](by_hand)
        dtype, scale = AUTOCAST[name], 2.0**10 if name == "fp16-mixed" else 1.0

        def closure_by_hand() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                loss = loss_of(by_hand, batches(1)[0])
            (loss * scale).backward()
            for parameter in by_hand.parameters():
                assert parameter.grad is not None
                parameter.grad /= scale
            return loss

        for _ in range(2):
            optimizer.step(closure_by_hand)
        with prepared(ours, CLOSURES[kind](ours), scaled(scale) if scale > 1 else name) as precision:
            for _ in range(2):
                assert precision.step(closure=lambda: evaluate(precision, ours)).stepped
        assert same(weights(ours), weights(by_hand))

    @pytest.mark.parametrize("kind", CLOSURES)
    def test_under_a_loss_scale_it_is_evaluated_again_until_gradients_are_finite(self, kind: str) -> None:
        small, large = model(), model()
        for net, scale in ((small, 2.0**10), (large, 2.0**24)):
            with prepared(net, CLOSURES[kind](net), scaled(scale)) as precision:
                info = precision.step(closure=lambda n=net, p=precision: evaluate(p, n))  # type: ignore[misc]
                assert (info.stepped, info.skipped) == (True, False)
                assert info.loss_scale < 2.0**24
        for a, b in zip(weights(small), weights(large), strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=1e-3)

    def test_when_no_scale_is_small_enough_it_is_skipped(self) -> None:
        net = model()
        before = weights(net)
        with prepared(net, lbfgs(net), scaled(4.0)) as precision:
            with pytest.warns(UserWarning, match="at loss scale 1, which falls no further"):
                info = precision.step(closure=lambda: evaluate(precision, net, overflowing))
            assert (info.stepped, info.skipped, info.loss_scale) == (False, True, 1.0)
        assert same(weights(net), before)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, r"LBFGS evaluates the loss several times; give step\(closure=\.\.\.\)"),
            ({"closure": 3}, "expected a function that computes the loss"),
            ({"closure": lambda: 0.0}, r"2 optimizers; name one: step\(closure=\.\.\., optimizer=\.\.\.\)"),
            ({"closure": lambda: 0.0, "clip_norm": 1.0}, "2 optimizers"),
        ],
        ids=["none", "no function", "two optimizers", "two optimizers and a limit"],
    )
    def test_what_is_refused(self, arguments: dict[str, Any], message: str) -> None:
        net = model()
        with prepared(net, [lbfgs(net[0]), sgd(net[2])], "fp32") as precision:
            with pytest.raises(BadInputError, match=message):
                precision.step(**arguments)

    def test_clipping_belongs_inside_it(self) -> None:
        net = model()
        with prepared(net, lbfgs(net), "fp32") as precision:
            with pytest.raises(BadInputError, match="clip inside it"):
                precision.step(clip_norm=1.0, closure=lambda: evaluate(precision, net))


def evaluate(precision: Precision, net: nn.Module, loss_in: Callable[[nn.Module], Tensor] | None = None) -> Tensor:
    precision.zero_grad()
    with precision.forward():
        loss = loss_in(net) if loss_in else loss_of(net, batches(1)[0])
    precision.backward(loss)
    return loss
