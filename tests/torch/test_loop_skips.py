# SPDX-License-Identifier: Apache-2.0
"""What a skipped step leaves behind: nothing in the next gradients, and nothing in the schedule."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.torch.loop_parts import (
    OPTIMIZERS,
    batches,
    loss_of,
    model,
    overflowing,
    prepared,
    same,
    scaled,
    train_step,
    weights,
)
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from floatwise.torch import Precision

#: When a loop zeroes gradients: before the backward, or after the step.
ORDERS = ("before", "after")
WAYS: dict[str, Callable[[Precision, Optimizer], None]] = {
    "precision": lambda precision, optimizer: precision.zero_grad(),
    "precision, to zeros": lambda precision, optimizer: precision.zero_grad(set_to_none=False),
    "optimizer": lambda precision, optimizer: optimizer.zero_grad(),
    "optimizer, to zeros": lambda precision, optimizer: optimizer.zero_grad(set_to_none=False),
}


class TestZeroGrad:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("order", ORDERS)
    def test_skipped_gradients_do_not_reach_the_next_step(self, order: str, way: str, kind: str) -> None:
        untouched = model()
        with prepared(untouched, OPTIMIZERS[kind](untouched), scaled(4.0)) as precision:
            for batch in batches(2):
                assert train_step(precision, untouched, batch)
        net = model()
        optimizer = OPTIMIZERS[kind](net)
        losses: list[Callable[[nn.Module], Tensor]] = [overflowing, *(partial(loss_of, batch=b) for b in batches(2))]
        with prepared(net, optimizer, scaled(8.0)) as precision:  # halved by the overflow
            stepped = []
            for loss_in in losses:
                if order == "before":
                    WAYS[way](precision, optimizer)
                with precision.forward():
                    loss = loss_in(net)
                precision.backward(loss)
                stepped.append(precision.step().stepped)
                if order == "after":
                    WAYS[way](precision, optimizer)
        assert stepped == [False, True, True]
        assert same(weights(net), weights(untouched))

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("name", ["fp16-mixed", "bf16-mixed"])
    def test_after_a_skip_gradients_are_there_unscaled(self, name: str, kind: str) -> None:
        net = model()
        with prepared(net, OPTIMIZERS[kind](net), name) as precision:
            precision.backward(net.get_parameter("2.weight").sum() + overflowing(net))
            assert precision.step(clip_norm=1.0).skipped
        gradient = net.get_parameter("2.weight").grad
        assert gradient is not None
        assert torch.equal(gradient, torch.ones_like(gradient))

    def test_gradients_that_are_never_zeroed_are_never_stepped(self) -> None:
        net = model()
        before = weights(net)
        with prepared(net, OPTIMIZERS["AdamW"](net), scaled()) as precision:
            precision.backward(overflowing(net))
            for _ in range(3):
                assert precision.step().skipped
                precision.backward(loss_of(net, batches(1)[0]))
        assert same(weights(net), before)


class TestWithoutLossScale:
    def test_only_a_norm_is_looked_at(self) -> None:
        net = model()
        with prepared(net, OPTIMIZERS["SGD"](net), "bf16-mixed") as precision:
            precision.backward(overflowing(net))
            skipped = precision.step(clip_norm=math.inf)
            assert (skipped.stepped, skipped.skipped) == (False, True)
            assert not math.isfinite(skipped.grad_norm or 0.0)
            assert all(w.isfinite().all() for w in weights(net))
            assert precision.step(clip_value=1.0).stepped  # clipped to 1: what it was is not known
            assert all(w.isfinite().all() for w in weights(net))
            precision.zero_grad()
            precision.backward(overflowing(net))
            assert precision.step().stepped
            assert not all(w.isfinite().all() for w in weights(net))


SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=0.1, total_steps=5),
}


class TestSchedules:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("schedule", SCHEDULERS)
    def test_the_rate_moves_on_real_steps_only(self, schedule: str, kind: str) -> None:
        net = model()
        optimizer = OPTIMIZERS[kind](net)
        scheduler = SCHEDULERS[schedule](optimizer)
        reference = SCHEDULERS[schedule](OPTIMIZERS[kind](model()))
        rates, expected = [], []
        with prepared(net, optimizer, scaled()) as precision, warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(6):
                precision.backward(overflowing(net) if number in (0, 3) else loss_of(net, batches(1)[0]))
                info = precision.step()
                precision.zero_grad()
                if info.stepped:
                    scheduler.step()
                assert info.stepped == (number not in (0, 3))
                rates.append(optimizer.param_groups[0]["lr"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this optimizer never steps
            for moved in (False, True, True, False, True, True):
                if moved:
                    reference.step()
                expected.append(reference.get_last_lr()[0])
        assert rates == expected

    def test_a_schedule_made_after_prepare_counts_the_same_steps(self) -> None:
        net = model()
        optimizer = OPTIMIZERS["SGD"](net)
        with prepared(net, optimizer, scaled()) as precision:
            scheduler = SCHEDULERS["LambdaLR"](optimizer)
            for loss in (overflowing(net), loss_of(net, batches(1)[0])):
                precision.backward(loss)
                if precision.step().stepped:
                    scheduler.step()
                precision.zero_grad()
        assert scheduler.get_last_lr() == [0.05 / 2]

    def test_stock_a_first_skip_brings_a_warning_and_moves_the_rate(self) -> None:
        net = model()
        optimizer = OPTIMIZERS["SGD"](net)
        scheduler = SCHEDULERS["LambdaLR"](optimizer)
        scaler = GradScaler("cpu")
        scaler.scale(overflowing(net)).backward()
        scaler.step(optimizer)
        scaler.update()
        with pytest.warns(UserWarning, match=r"`lr_scheduler\.step\(\)` before `optimizer\.step\(\)`"):
            scheduler.step()
        assert scheduler.get_last_lr() == [0.05 / 2]

    def test_stock_a_fused_skip_moves_the_rate_without_a_word(self) -> None:
        net: nn.Module = model()
        optimizer = OPTIMIZERS["AdamW fused"](net)
        scheduler = SCHEDULERS["LambdaLR"](optimizer)
        scaler = GradScaler("cpu")
        before = weights(net)
        scaler.scale(overflowing(net)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        assert same(weights(net), before)
        rate: Any = scheduler.get_last_lr()[0]
        assert rate == 1e-2 / 2
