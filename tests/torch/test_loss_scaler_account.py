# SPDX-License-Identifier: Apache-2.0
"""The account of a loss scaler: what each step did, how many were skipped, and how the scale has moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.torch import LossScaler

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


def scaler(scale: float = 8.0, **settings: Any) -> LossScaler:
    return LossScaler("cpu", init_scale=scale, **settings)


def trained(kind: str = "SGD") -> tuple[nn.Parameter, Optimizer]:
    weight = nn.Parameter(torch.ones(4))
    return weight, OPTIMIZERS[kind]([weight])


def one_step(s: GradScaler, weight: nn.Parameter, optimizer: Optimizer, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    s.scale((weight * factor).sum()).backward()
    s.step(optimizer)
    s.update()


INF, GOOD = math.inf, 1.0


class TestAccount:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_what_each_step_did(self, kind: str) -> None:
        weight, optimizer = trained(kind)
        s = scaler()
        seen = [s.last_step]
        for factor in (GOOD, INF, INF, GOOD, INF):
            before = weight.detach().clone()
            one_step(s, weight, optimizer, factor)
            seen.append(s.last_step)
            assert torch.equal(weight, before) == (s.last_step == "skipped")
        assert seen == [None, "stepped", "skipped", "skipped", "stepped", "skipped"]
        assert (s.skipped_steps, s.consecutive_skips) == (3, 1)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("factor", [GOOD, INF])
    def test_gradients_are_unscaled_after_a_step(self, kind: str, factor: float) -> None:
        weight, optimizer = trained(kind)
        s = scaler()
        s.scale(weight.sum()).backward()
        assert weight.grad is not None
        weight.grad[0] *= factor
        s.step(optimizer)
        assert weight.grad[1:].tolist() == [1.0] * 3

    def test_growth_is_not_a_skip(self) -> None:
        weight, optimizer = trained()
        s = scaler(growth_interval=1)
        one_step(s, weight, optimizer)
        assert (s.get_scale(), s.last_step, s.skipped_steps) == (16.0, "stepped", 0)

    def test_two_optimizers_are_told_apart(self) -> None:
        (good, first), (bad, second) = trained(), trained()
        s = scaler()
        s.scale(good.sum() + (bad * INF).sum()).backward()
        s.unscale_(first)
        s.unscale_(second)
        seen = []
        for optimizer in (second, first):
            s.step(optimizer)
            seen.append(s.last_step)
        s.update()
        assert [*seen, s.last_step] == ["skipped", "stepped", "stepped"]
        assert (s.get_scale(), s.skipped_steps) == (4.0, 1)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_optimizers_that_agree_skip_together(self, kind: str) -> None:
        (good, first), (bad, second) = trained(kind), trained(kind)
        s = scaler()
        s.scale(good.sum() + (bad * INF).sum()).backward()
        for optimizer in (first, second):
            s.unscale_(optimizer)
        assert s.agree([first, second]) is False
        for optimizer in (first, second):
            s.step(optimizer)
        s.update()
        assert torch.equal(good, torch.ones(4))
        assert torch.equal(bad, torch.ones(4))
        assert s.get_scale() == 4.0

    def test_findings_are_counted_without_being_asked_for(self) -> None:
        weight, optimizer = trained()
        s = scaler(alarm_after=None)
        for _ in range(200):
            one_step(s, weight, optimizer, INF)
        assert len(s._log) < 64
        assert s.skipped_steps == 200

    def test_a_loop_that_unscales_by_itself(self) -> None:
        s = scaler(growth_interval=1)
        s.scale(torch.zeros(()))
        s.update_from(torch.tensor(0.0))
        assert (s.get_scale(), s.last_step) == (16.0, "stepped")
        s.update_from(torch.tensor(2.0))
        assert (s.get_scale(), s.last_step, s.skipped_steps) == (8.0, "skipped", 1)


class TestHistory:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_it_has_changes_and_skips_only(self, kind: str) -> None:
        weight, optimizer = trained(kind)
        s = scaler(4.0, growth_interval=2, floor=2.0, alarm_after=None)
        for factor in (GOOD, GOOD, GOOD, INF, GOOD, INF, INF, GOOD):
            one_step(s, weight, optimizer, factor)
        assert s.history == [
            (2, 4.0, 8.0, False),
            (4, 8.0, 4.0, True),
            (6, 4.0, 2.0, True),
            (7, 2.0, 2.0, True),
        ]
        assert s.history[1].update == 4
        assert s.history[1].before == 8.0
        assert s.history[1].after == 4.0
        assert s.history[1].skipped

    def test_a_static_scale_has_skips(self) -> None:
        weight, optimizer = trained()
        s = scaler(dynamic=False)
        for factor in (GOOD, INF, GOOD):
            one_step(s, weight, optimizer, factor)
        assert s.history == [(2, 8.0, 8.0, True)]

    def test_a_scale_set_by_hand_belongs_to_the_step_before_it(self) -> None:
        weight, optimizer = trained()
        s = scaler()
        s.scale(weight.sum()).backward()
        s.update(4.0)  # no step yet
        s.step(optimizer)
        s.update(16.0)
        one_step(s, weight, optimizer)
        assert s.history == [(1, 8.0, 4.0, False), (1, 4.0, 16.0, False)]
        assert s.state_dict()["updates"] == 2

    def test_a_skip_before_a_scale_set_by_hand_is_counted(self) -> None:
        weight, optimizer = trained()
        s = scaler()
        s.scale((weight * INF).sum()).backward()
        s.step(optimizer)
        s.update(4.0)
        assert (s.skipped_steps, s.consecutive_skips, s.history) == (1, 1, [(1, 8.0, 4.0, True)])

    def test_it_is_bounded(self) -> None:
        s = scaler(dynamic=False, alarm_after=None)
        s.scale(torch.ones(()))
        for _ in range(1030):
            s.update_from(torch.tensor(1.0))
        assert len(s.history) == 1024
        assert s.history[0].update == 7
        s.history.clear()  # a copy
        assert len(s.history) == 1024


class TestHysteresis:
    @pytest.mark.parametrize(
        ("hysteresis", "overflows", "scale"),
        [
            (1, "x", 32.0),
            (2, "x", 64.0),
            (2, "xx", 32.0),
            (2, "xxx", 16.0),
            (2, "x.x.x.x", 64.0),
            (2, "xx.x", 32.0),
            (3, "xx", 64.0),
            (3, "xxx", 32.0),
            (3, "xxxx", 16.0),
            (3, "xx.xx.", 64.0),
        ],
    )
    def test_so_many_overflows_in_a_row_back_off(self, hysteresis: int, overflows: str, scale: float) -> None:
        """As apex's update_scale_hysteresis."""
        weight, optimizer = trained()
        s = scaler(64.0, hysteresis=hysteresis)
        for kind in overflows:
            one_step(s, weight, optimizer, INF if kind == "x" else GOOD)
        assert s.get_scale() == scale
        assert s.skipped_steps == overflows.count("x")

    @pytest.mark.parametrize("growth", ["headroom", "fixed"])
    def test_a_tolerated_overflow_delays_growth_all_the_same(self, growth: Any) -> None:
        weight, optimizer = trained()
        s = scaler(growth_interval=3, hysteresis=2, growth=growth)
        scales = []
        for factor in (GOOD, GOOD, INF, GOOD, GOOD, GOOD):
            one_step(s, weight, optimizer, factor)
            scales.append(s.get_scale())
        assert scales == [8.0] * 5 + [16.0]
