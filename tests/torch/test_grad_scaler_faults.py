# SPDX-License-Identifier: Apache-2.0
"""What torch 2.6 to 2.13 gets wrong about gradient scaling, and ours right: each test asserts both.

An assertion about stock torch that fails is good news: the fault is fixed, and the remark on it here and in the
documentation can go.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from floatwise.errors import NonFiniteGradientsError
from floatwise.hardware import get_device
from floatwise.torch import LossScaler

INF, GOOD = math.inf, 1.0

FUSED: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}


def stock(**settings: Any) -> GradScaler:
    return GradScaler("cpu", **settings)


def ours(**settings: Any) -> LossScaler:
    return LossScaler("cpu", **settings)


def take(s: GradScaler, weight: nn.Parameter, optimizer: Optimizer, factor: float) -> None:
    optimizer.zero_grad()
    s.scale((weight * factor).sum()).backward()
    s.step(optimizer)
    s.update()


def sgd() -> tuple[nn.Parameter, Optimizer]:
    weight = nn.Parameter(torch.ones(2))
    return weight, torch.optim.SGD([weight], lr=0.1)


class TestFault1NoFloor:
    """The scale of a `GradScaler` falls to zero, and then a good step writes NaN (pytorch#99640)."""

    @pytest.mark.parametrize(
        ("overflows", "scale", "after"),
        [(166, 0.0, "nan"), (146, 2.0**-130, "-inf")],
    )
    def test_stock_ruins_the_weights(self, overflows: int, scale: float, after: str) -> None:
        weight, optimizer = sgd()
        s = stock()
        for _ in range(overflows):
            take(s, weight, optimizer, INF)
        assert s.get_scale() == scale
        assert weight.tolist() == [1.0, 1.0]
        take(s, weight, optimizer, GOOD)
        assert [str(value) for value in weight.tolist()] == [after, after]

    @pytest.mark.parametrize("overflows", [146, 166, 400])
    def test_ours_stops_at_the_floor(self, overflows: int) -> None:
        weight, optimizer = sgd()
        s = ours(alarm_after=None)
        for _ in range(overflows):
            take(s, weight, optimizer, INF)
        assert s.get_scale() == 1.0
        take(s, weight, optimizer, GOOD)
        assert weight.tolist() == pytest.approx([0.9, 0.9])

    def test_stock_says_nothing_and_ours_raises(self) -> None:
        weight, optimizer = sgd()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s = stock()
            for _ in range(166):
                take(s, weight, optimizer, INF)
        s = ours()
        for _ in range(16):
            take(s, weight, optimizer, INF)
        with pytest.warns(UserWarning, match="at loss scale 1, which falls no further"):
            take(s, weight, optimizer, INF)
        for _ in range(7):
            take(s, weight, optimizer, INF)
        with pytest.raises(NonFiniteGradientsError, match="25 steps in a row"):
            take(s, weight, optimizer, INF)


@pytest.mark.parametrize("kind", FUSED)
class TestFault2FusedOptimizers:
    """They skip inside their kernel: the step counts as made, and gradients stay scaled."""

    @staticmethod
    def skipped(s: GradScaler, kind: str) -> tuple[nn.Parameter, LambdaLR]:
        weight = nn.Parameter(torch.ones(3))
        optimizer = FUSED[kind]([weight])
        scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
        s.scale((weight * torch.tensor([1.0, 2.0, INF])).sum()).backward()
        s.step(optimizer)
        return weight, scheduler

    def test_stock_leaves_gradients_scaled_after_a_skip(self, kind: str) -> None:
        weight, _ = self.skipped(stock(init_scale=8.0), kind)
        assert weight.tolist() == [1.0] * 3
        assert weight.grad is not None
        assert weight.grad.tolist() == [8.0, 16.0, INF]

    def test_ours_unscales_them(self, kind: str) -> None:
        weight, _ = self.skipped(ours(init_scale=8.0), kind)
        assert weight.tolist() == [1.0] * 3
        assert weight.grad is not None
        assert weight.grad.tolist() == [1.0, 2.0, INF]

    def test_stock_does_not_warn_a_scheduler_and_ours_says_that_it_skipped(self, kind: str) -> None:
        """With another optimizer, `lr_scheduler.step()` before any `optimizer.step()` warns."""
        _, scheduler = self.skipped(stock(), kind)
        scheduler.step()  # warnings are errors here
        assert scheduler.get_last_lr() == [0.05]  # moved, though no weight has
        s = ours()
        _, scheduler = self.skipped(s, kind)
        if s.last_step == "stepped":
            scheduler.step()
        assert scheduler.get_last_lr() == [0.1]


class TestFault5NoAccount:
    """There is no count of skipped steps (pytorch#67590), and the scale does not tell."""

    def test_stock_has_no_count(self) -> None:
        assert not [name for name in dir(stock()) if "skip" in name]

    def test_a_changed_scale_is_no_skip_and_ours_says_so(self) -> None:
        settings: dict[str, Any] = {"init_scale": 8.0, "growth_interval": 1}
        for s, headline in ((stock(**settings), None), (ours(**settings), "stepped")):
            weight, optimizer = sgd()
            before = s.get_scale()
            take(s, weight, optimizer, GOOD)
            assert s.get_scale() != before  # what loops take for a skip
            assert getattr(s, "last_step", None) == headline
            assert weight.tolist() == pytest.approx([0.9, 0.9])

    def test_an_unchanged_scale_is_no_step_and_ours_says_so(self) -> None:
        weight, optimizer = sgd()
        s = ours(init_scale=1.0, alarm_after=None)
        take(s, weight, optimizer, INF)
        assert (s.get_scale(), s.last_step, s.skipped_steps, s.consecutive_skips) == (1.0, "skipped", 1, 1)

    def test_stock_takes_a_closure_by_position_and_ours_refuses_it(self) -> None:
        evaluations = 0

        def closure() -> float:
            nonlocal evaluations
            evaluations += 1
            return 0.0

        weight, optimizer = sgd()
        s = stock()
        s.scale(weight.sum()).backward()
        s.step(optimizer, closure)
        assert evaluations == 1  # by the optimizer, after unscaling: had it made gradients, they were scaled
        s = ours()
        s.scale(weight.sum()).backward()
        with pytest.raises(RuntimeError, match=r"step_with_closure"):
            s.step(optimizer, closure)
        assert evaluations == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
class TestFault6WithoutCUDA:
    """`GradScaler()` disables itself, so that a float16 run on another device goes on unscaled."""

    def test_stock_disables_itself(self) -> None:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            s = GradScaler()
        assert not s.is_enabled()
        assert s.scale(torch.ones(())).item() == 1.0

    def test_ours_scales_where_the_loss_is(self) -> None:
        s = LossScaler()
        assert s.is_enabled()
        assert s.scale(torch.ones(())).item() == 2.0**16
        s.update(torch.tensor(4.0))  # refused where the device is another than the tensor's
        assert s.get_scale() == 4.0

    def test_asked_for_cuda_ours_does_what_stock_does(self) -> None:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            s = LossScaler("cuda")
        assert not s.is_enabled()

    def test_disabled_stock_forgets_its_settings_and_ours_does_not(self) -> None:
        getters = ("get_growth_factor", "get_backoff_factor", "get_growth_interval")
        s = stock(enabled=False)
        for getter in getters:
            with pytest.raises(AttributeError):
                getattr(s, getter)()
        s = ours(enabled=False)
        assert [getattr(s, getter)() for getter in getters] == [2.0, 0.5, 2000]


class TestSmallerFaults:
    @pytest.mark.parametrize(
        ("new", "error"), [(1024, AttributeError), (torch.tensor([1024.0]), RuntimeError)], ids=["int", "1 element"]
    )
    def test_stock_fails_on_scales_it_documents_and_ours_takes_them(self, new: Any, error: type[Exception]) -> None:
        s = stock()
        s.scale(torch.ones(()))
        with pytest.raises(error):
            s.update(new)
        s = ours()
        s.scale(torch.ones(()))
        s.update(new)
        assert s.get_scale() == 1024.0

    def test_stock_goes_on_from_a_collapsed_state_and_ours_from_the_floor(self) -> None:
        state = {**stock().state_dict(), "scale": 0.0}
        s = stock()
        s.load_state_dict(state)
        assert s.get_scale() == 0.0
        s = ours()
        with pytest.warns(UserWarning, match="going on from the floor"):
            s.load_state_dict(state)
        assert s.get_scale() == 1.0


class TestFault6EmulatedBfloat16:
    """`torch.cuda.is_bf16_supported()` says yes to a T4, which has no unit for it."""

    def test_stock_counts_emulation_and_ours_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        t4 = SimpleNamespace(major=7, minor=5, name="Tesla T4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _=None: t4)
        monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)
        assert torch.cuda.is_bf16_supported()
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        assert not get_device(t4.name).has_matrix("bfloat16")
