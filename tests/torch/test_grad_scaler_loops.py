# SPDX-License-Identifier: Apache-2.0
"""Training loops that PyTorch tests its grad scaler with, on the CPU: with it and with ours, weights are as without."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.grad_scaler_parts import (
    FUSED,
    OPTIMIZERS,
    SCALERS,
    SKIPPED,
    Batch,
    Spoil,
    batches,
    compare,
    leave,
    loss_of,
    model,
    optimizer_of,
    put_inf,
)
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

Make = Callable[..., GradScaler]


@pytest.fixture(params=SCALERS)
def make(request: pytest.FixtureRequest) -> Make:
    return SCALERS[request.param]


@pytest.fixture
def scaler(make: Make) -> GradScaler:
    """A scaler that grows after every good update."""
    return make(init_scale=128.0, growth_factor=2.0, growth_interval=1)


def plain(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
    optimizer.zero_grad()
    s.scale(loss_of(net, batch)).backward()
    spoil(net)
    s.step(optimizer)
    s.update()


def autocast(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=s.is_enabled()):
        loss = loss_of(net, batch)
    s.scale(loss).backward()
    spoil(net)
    s.step(optimizer)
    s.update()


def pickled(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> GradScaler:
    autocast(s, net, optimizer, batch, spoil)
    copied: GradScaler = pickle.loads(pickle.dumps(s))
    return copied


def clipped_scaled(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
    optimizer.zero_grad()
    s.scale(loss_of(net, batch)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.2 * s.get_scale())
    spoil(net)
    s.step(optimizer)
    s.update()


def clipped_unscaled(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
    optimizer.zero_grad()
    s.scale(loss_of(net, batch)).backward()
    spoil(net)
    s.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 0.2)
    s.step(optimizer)
    s.update()


def penalized(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
    """The recipe of PyTorch's documentation: scale for `autograd.grad`, unscale by hand, scale the total."""
    optimizer.zero_grad()
    loss = loss_of(net, batch)
    scaled = torch.autograd.grad(s.scale(loss), list(net.parameters()), create_graph=True)
    gradients = [gradient * (1.0 / s.get_scale()) for gradient in scaled]
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    s.scale(loss + norm).backward()
    spoil(net)
    s.step(optimizer)
    s.update()


class TestLoops:
    @pytest.mark.parametrize(
        "iteration", [plain, clipped_scaled, clipped_unscaled, penalized], ids=lambda f: f.__name__
    )
    def test_training_is_as_without_a_scaler(self, scaler: GradScaler, iteration: Any) -> None:
        used = compare(iteration, scaler, atol=1e-5 if iteration is clipped_scaled else 1e-7)
        assert used.get_scale() == 128.0 * 2**3 / 2

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("iteration", [plain, autocast, pickled], ids=lambda f: f.__name__)
    def test_every_optimizer(self, scaler: GradScaler, kind: str, iteration: Any) -> None:
        # Adam's step of a gradient near zero has either sign, whatever the rounding makes of it.
        used = compare(iteration, scaler, kind, atol=1e-6 if iteration is plain else 1e-2)
        assert used.get_scale() == 128.0 * 2**3 / 2

    def test_gradients_of_two_batches_add_up(self, scaler: GradScaler) -> None:
        count = 0

        def accumulated(s: GradScaler, net: nn.Sequential, optimizer: Optimizer, batch: Batch, spoil: Spoil) -> None:
            nonlocal count
            s.scale(loss_of(net, batch) / 2).backward()
            count += 1  # control and scaled take turns: both step at every second batch of theirs
            if count % 4 in (3, 0):
                s.step(optimizer)
                s.update()
                if count < 7:
                    optimizer.zero_grad()

        assert compare(accumulated, scaler, skips=False).get_scale() == 128.0 * 2**2

    @pytest.mark.parametrize("apart", [False, True], ids=["step unscales", "unscaled apart"])
    @pytest.mark.parametrize("kind", FUSED)
    def test_fused_steps_are_those_of_a_loop(self, make: Make, kind: str, apart: bool) -> None:
        nets = model(), model()
        optimizers = optimizer_of(nets[0], kind, fused=False), optimizer_of(nets[1], kind)
        scalers = make(init_scale=128.0), make(init_scale=128.0)
        for batch in batches():
            for s, net, optimizer in zip(scalers, nets, optimizers, strict=True):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = loss_of(net, batch)
                s.scale(loss).backward()
                if apart:
                    s.unscale_(optimizer)
                s.step(optimizer)
                s.update()
            for looped, fused in zip(*(net.parameters() for net in nets), strict=True):
                torch.testing.assert_close(fused, looped, atol=2e-5, rtol=2e-5)
                torch.testing.assert_close(fused.grad, looped.grad, atol=2e-5, rtol=2e-5)

    @pytest.mark.parametrize("kind", ["AdamW", "AdamW foreach", "AdamW fused"])
    def test_what_is_spoilt_after_unscaling_is_not_noticed(self, make: Make, kind: str) -> None:
        net, s = model(), make(init_scale=128.0)
        optimizer = optimizer_of(net, kind)
        s.scale(loss_of(net, batches()[0])).backward()
        s.unscale_(optimizer)
        put_inf(net)
        s.step(optimizer)
        s.update()
        assert not torch.cat([p.flatten() for p in net[1].parameters()]).isfinite().all()

    @pytest.mark.parametrize("enabled", [True, False])
    def test_two_models_two_optimizers_two_losses(self, make: Make, enabled: bool) -> None:
        def train(s: GradScaler, control: bool) -> list[Tensor]:
            nets = model(), model()
            for parameter in nets[1].parameters():
                parameter.data.neg_()
            optimizers = [optimizer_of(net) for net in nets]
            torch.manual_seed(2)
            for number, batch in enumerate(batches()):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                outputs = [net(batch[0]) for net in nets]
                losses = [
                    nn.functional.mse_loss(a * outputs[0] + b * outputs[1], batch[1])
                    for a, b in ((0.3, 0.7), (0.6, -0.4))
                ]
                s.scale(losses[0]).backward(retain_graph=True)
                s.scale(losses[1]).backward()
                spoilt = enabled and number == SKIPPED
                (put_inf if spoilt and not control else leave)(nets[1])
                s.unscale_(optimizers[0])  # the other is unscaled by its step
                s.step(optimizers[0])
                if not (spoilt and control):
                    s.step(optimizers[1])
                s.update()
            return [p for net in nets for p in net.parameters()]

        s = make(init_scale=128.0, growth_interval=1, enabled=enabled)
        expected = train(GradScaler("cpu", enabled=False), control=True)
        torch.testing.assert_close(train(s, control=False), expected, atol=1e-7, rtol=1e-5)
        assert s.get_scale() == (128.0 * 2**3 / 2 if enabled else 1.0)

    def test_disabled_it_changes_nothing(self, make: Make) -> None:
        for iteration in (plain, autocast, clipped_scaled, clipped_unscaled, penalized):
            s = make(init_scale=128.0, enabled=False)
            assert compare(iteration, s, skips=False).get_scale() == 1.0
            assert s.state_dict() == {}


class TestOptimizersThatScale:
    def test_they_are_handed_the_scaler_or_its_numbers(self, make: Make) -> None:
        seen: list[Any] = []

        class TakesScaler(torch.optim.SGD):
            _step_supports_amp_scaling = True

            def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
                seen.append((grad_scaler, hasattr(self, "grad_scale"), hasattr(self, "found_inf")))

        class TakesNumbers(torch.optim.SGD):
            _step_supports_amp_scaling = True

            def step(self, closure: Any = None) -> Any:
                seen.append((self.found_inf.item(), self.grad_scale))  # type: ignore[attr-defined]

        net, s = model(), make(init_scale=2.0)
        s.scale(loss_of(net, batches()[0])).backward()
        takes_numbers = TakesNumbers(net.parameters(), lr=1.0)
        with pytest.warns(FutureWarning, match="stop passing itself"):
            s.step(TakesScaler(net.parameters(), lr=1.0))
        s.step(takes_numbers)
        s.update()
        assert seen[0] == (s, False, False)
        found, scale = seen[1]
        assert found == 0.0
        # Ours has unscaled the gradients already; then GradScaler hands on None, too.
        assert scale is None or scale == 2.0
        assert not hasattr(takes_numbers, "found_inf")
        assert not hasattr(takes_numbers, "grad_scale")
