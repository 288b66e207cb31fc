# SPDX-License-Identifier: Apache-2.0
"""Losses made of gradients: penalties on those of the weights and of the inputs."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from tests.torch.loop_parts import AUTOCAST, batches, loss_of, model, prepared, same, scaled, sgd, weights
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from floatwise.torch import Precision


def penalty_of(gradients: tuple[Tensor | None, ...]) -> Tensor:
    total = torch.zeros(())
    for gradient in gradients:
        assert gradient is not None
        total = total + gradient.square().sum()
    return total.sqrt()


def by_hand(net: nn.Module, name: str, steps: int) -> None:
    """As PyTorch's AMP examples do it: scale, differentiate, unscale out of place, add, scale."""
    optimizer = sgd(net)
    scaler = GradScaler("cpu", enabled=name == "fp16-mixed")
    dtype = AUTOCAST[name]
    for batch in batches(steps):
        with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
            loss = loss_of(net, batch)
        gradients = torch.autograd.grad(scaler.scale(loss), list(net.parameters()), create_graph=True)
        gradients = tuple(g * (1.0 / scaler.get_scale()) for g in gradients)
        with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
            loss = loss + penalty_of(gradients)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def penalised_step(precision: Precision, net: nn.Module, batch: tuple[Tensor, Tensor]) -> bool:
    with precision.forward():
        loss = loss_of(net, batch)
    gradients = precision.grad(loss, list(net.parameters()), create_graph=True)
    with precision.forward():
        loss = loss + penalty_of(gradients)
    precision.backward(loss)
    info = precision.step()
    precision.zero_grad()
    return info.stepped


@pytest.mark.parametrize("name", AUTOCAST)
def test_a_penalty_on_gradients_is_a_hand_written_loop_bit_for_bit(name: str) -> None:
    expected, ours = model(), model()
    by_hand(expected, name, 3)
    with prepared(ours, sgd(ours), name) as precision:
        assert all(penalised_step(precision, ours, batch) for batch in batches(3))
    assert same(weights(ours), weights(expected))


def test_gradients_have_their_true_size_and_grad_is_left_alone() -> None:
    net = model()
    expected = torch.autograd.grad(loss_of(net, batches(1)[0]), list(net.parameters()))
    with prepared(net, sgd(net), scaled(1024.0)) as precision:
        gradients = precision.grad(loss_of(net, batches(1)[0]), list(net.parameters()))
    assert same([g for g in gradients if g is not None], list(expected))
    assert all(p.grad is None for p in net.parameters())


def test_small_gradients_of_inputs_do_not_vanish_in_float16() -> None:
    """The penalty of WGAN-GP: on the critic's gradient at its inputs, here of 16 bits."""
    net = nn.Linear(4, 1, bias=False)
    nn.init.constant_(net.weight, 2.0**-9)
    x = torch.ones(2, 4, dtype=torch.float16, requires_grad=True)
    weight = torch.full((2, 1), 2.0**-20)
    with prepared(net, sgd(net), scaled(2.0**14)) as precision:
        with precision.forward():
            outputs = net(x)
        lost = torch.autograd.grad(outputs, x, weight.half(), retain_graph=True)[0]
        (kept,) = precision.grad(outputs, x, grad_outputs=weight.half(), create_graph=True)
        assert kept is not None
        assert kept.dtype is torch.float32
        assert (lost == 0).all()
        assert (kept == 2.0**-29).all()
        precision.backward(kept.sum() * 2.0**9)
        assert precision.step().stepped
    torch.testing.assert_close(net.weight, torch.full((1, 4), 2.0**-9 - 0.1 * 2.0**-10))


def test_an_overflow_in_a_penalty_skips_and_lowers_the_scale() -> None:
    net = model()
    before = weights(net)
    with prepared(net, sgd(net), scaled(2.0**24)) as precision:
        with precision.forward():
            loss = net(batches(1)[0][0]).mean()
        gradients = precision.grad(loss, list(net.parameters()), create_graph=True)
        precision.backward(penalty_of(gradients))
        info = precision.step()
    assert info.skipped
    assert info.loss_scale == 2.0**23
    assert same(weights(net), before)
    assert any(not math.isfinite(g.sum().item()) for g in gradients if g is not None)


def test_unused_inputs() -> None:
    net = model()
    with prepared(net, sgd(net), scaled()) as precision:
        unused, used = precision.grad(
            net.get_parameter("2.weight").sum(),
            [net.get_parameter("0.weight"), net.get_parameter("2.weight")],
            allow_unused=True,
        )
    assert unused is None
    assert used is not None
    assert torch.equal(used, torch.ones(32, 32))
