# SPDX-License-Identifier: Apache-2.0
"""Where the scale grows, and where it does not: room for the gradients, overflows that were seen, measured windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from floatwise.torch import LossScaler

INF, NAN = math.inf, math.nan


def scaler(scale: float = 8.0, interval: int = 1, **changes: Any) -> LossScaler:
    return LossScaler("cpu", init_scale=scale, growth_interval=interval, **changes)


class Run:
    """A weight whose gradient has a chosen magnitude, under a scaler.

    Args:
      s: The scaler.
      activations: How much larger gradients of activations are; they overflow float16 where nobody measures.
    """

    def __init__(self, s: GradScaler, activations: float = 1.0) -> None:
        self.scaler, self.activations = s, activations
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.skips = 0

    def step(self, gradient: float = 1.0, loss: float = 1.0) -> float:
        """Takes a step and returns the scale after it."""
        scaled = self.scaler.scale(torch.tensor(loss)) * gradient
        overflows = scaled.abs() * self.activations > 65504.0
        self.weight.grad = torch.tensor([0.25, 1.0]) * torch.where(overflows, torch.nan, scaled)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skips += self.scaler.get_scale() < before
        return self.scaler.get_scale()

    def steps(self, count: int, gradient: float = 1.0) -> list[float]:
        return [self.step(gradient) for _ in range(count)]


class TestRoom:
    # 65504 / 2**bits is what the largest scaled gradient may be after growth.
    @pytest.mark.parametrize(
        ("bits", "gradient", "grows"),
        [
            (4, 255.875, True),
            (4, 256.0, False),
            (4, 1e-30, True),
            (4, 0.0, True),
            (0, 4094.0, True),
            (0, 4094.5, False),
            (8, 15.99, True),
            (8, 16.0, False),
        ],
    )
    def test_it_grows_only_where_the_largest_gradient_has_room(self, bits: int, gradient: float, grows: bool) -> None:
        assert Run(scaler(headroom_bits=bits)).step(gradient) == (16.0 if grows else 8.0)

    def test_the_largest_of_the_whole_interval_counts(self) -> None:
        run = Run(scaler(interval=4))
        assert [run.step(g) for g in (1.0, 400.0, 1.0, 1.0)] == [8.0] * 4
        assert run.steps(4)[-1] == 16.0  # by now 400 is worth 100 and a little

    def test_every_parameter_and_every_optimizer_counts(self) -> None:
        for large in range(3):
            s = scaler()
            weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
            optimizers = torch.optim.SGD(weights[:2], lr=0.0), torch.optim.SGD(weights[2:], lr=0.0, fused=True)
            s.scale(sum((w[0] * (1000.0 if i == large else 1.0) for i, w in enumerate(weights)), torch.zeros(())))
            for i, weight in enumerate(weights):
                weight.grad = torch.tensor([-8000.0 if i == large else 8.0, 0.0])
            for optimizer in optimizers:
                s.step(optimizer)
            s.update()
            assert s.get_scale() == 8.0

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_gradients_of_any_kind_are_measured(self, dtype: torch.dtype) -> None:
        s = scaler()
        dense = nn.Parameter(torch.ones(2, dtype=dtype))
        s.scale(torch.ones(()))
        dense.grad = torch.tensor([-8000.0, 1.0], dtype=dtype)
        s.step(torch.optim.SGD([dense], lr=0.0, fused=True))
        s.update()
        assert s.get_scale() == 8.0

    def test_sparse_gradients_are_measured(self) -> None:
        s = scaler()
        table = nn.Embedding(4, 2, sparse=True)
        s.scale(table(torch.tensor([1, 3])).sum() * 1000.0).backward()
        s.step(torch.optim.SGD(table.parameters(), lr=0.0))
        s.update()
        assert s.get_scale() == 8.0

    def test_clipping_does_not_hide_the_gradients(self) -> None:
        s = scaler()
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        s.scale((weight * 1000.0).sum()).backward()
        s.unscale_(optimizer)
        nn.utils.clip_grad_norm_([weight], 1.0)
        s.step(optimizer)
        s.update()
        assert s.get_scale() == 8.0

    def test_a_healthy_run_finds_its_scale_without_losing_a_step(self) -> None:
        ours, stock = (Run(s) for s in (scaler(1.0, 10), GradScaler("cpu", init_scale=1.0, growth_interval=10)))
        for run in (ours, stock):
            run.steps(1000)
        assert ours.skips == 0
        assert ours.scaler.get_scale() == 2048.0  # 4096 would be past 65504 / 2**4
        assert stock.skips == 77


class TestOverflow:
    """Gradients of activations 2**10 times those of weights: overflow from a scale of 64 on, for a gradient of 1."""

    @staticmethod
    def hidden(s: GradScaler) -> Run:
        return Run(s, activations=2.0**10)

    @pytest.mark.parametrize(("interval", "holds"), [(10, 10), (20, 20), (70, 64)])
    def test_a_scale_that_overflowed_at_once_is_left_alone_for_long(self, interval: int, holds: int) -> None:
        run = self.hidden(scaler(32.0, interval))
        scales = run.steps(interval * (holds + 3))
        falls = [i for i in range(1, len(scales)) if scales[i] < scales[i - 1]]
        # The first growth, the overflow after it, as many intervals, and the same again.
        assert falls == [interval, interval + interval * holds + 1]
        assert max(scales) == 64.0

    def test_it_loses_a_twentieth_of_the_steps(self) -> None:
        ours, stock = (
            self.hidden(s) for s in (scaler(32.0, 20), GradScaler("cpu", init_scale=32.0, growth_interval=20))
        )
        for run in (ours, stock):
            run.steps(1600)
        assert (ours.skips, stock.skips) == (4, 76)

    def test_an_overflow_later_after_growth_is_remembered_for_less_long(self) -> None:
        for age, holds in ((2, 10), (5, 4), (10, 2), (19, 2), (25, 1)):
            run = Run(scaler(64.0, 20, headroom_bits=9))
            run.steps(age)
            assert run.step(NAN) == 32.0
            scales = run.steps(20 * holds)
            assert scales[-2:] == [32.0, 64.0], age

    def test_from_a_start_that_is_too_high_it_loses_what_it_must(self) -> None:
        run = self.hidden(scaler(2.0**16, 10))
        run.steps(110)
        assert (run.skips, run.scaler.get_scale()) == (11, 32.0)

    def test_as_gradients_shrink_the_scale_follows(self) -> None:
        run = self.hidden(scaler(64.0, 20))
        run.steps(50)
        assert (run.skips, run.scaler.get_scale()) == (1, 32.0)
        # An eighth: the peak falls by half in an interval, so that it takes three until all of it is known.
        assert run.steps(120, gradient=0.125)[-1] == 256.0
        assert run.skips == 1

    def test_one_bad_batch_costs_one_interval(self) -> None:
        run = Run(scaler(64.0, 10, headroom_bits=9))
        run.steps(25)
        assert run.step(NAN) == 32.0
        assert run.steps(10)[-1] == 64.0

    @pytest.mark.parametrize("loss", [INF, NAN])
    def test_a_loss_that_was_not_finite_says_nothing_about_the_scale(self, loss: float) -> None:
        run = Run(scaler(64.0, 10, headroom_bits=9))
        assert run.step(1.0, loss) == 32.0  # right at the start, which else speaks against the scale
        assert run.steps(10)[-1] == 64.0
        run = Run(scaler(64.0, 10, headroom_bits=9))
        assert run.step(NAN) == 32.0
        assert run.steps(90)[-1] == 32.0

    @settings(max_examples=15)
    @given(every=st.integers(12, 40), offset=st.integers(0, 39))
    def test_bad_batches_do_not_wear_the_scale_down(self, every: int, offset: int) -> None:
        run = Run(scaler(2.0**12, 10, floor=2.0**-20))
        scales = [run.step(NAN if (i + offset) % every == every - 1 else 1.0) for i in range(600)]
        assert min(scales) >= 4.0  # where a gradient of 1 has 26 powers of two below it


class TestWindow:
    def test_the_scale_stays_in_the_window_until_gradients_shrink(self) -> None:
        run = Run(scaler(2.0, 10, window_log2=(0, 4)))
        assert run.steps(200)[-1] == 16.0
        assert run.steps(40, gradient=0.25)[-1] == 64.0

    def test_the_window_is_not_forgotten_with_time(self) -> None:
        run = Run(scaler(16.0, 1, window_log2=(0, 4)))
        assert set(run.steps(300)) == {16.0}

    def test_without_measured_gradients_it_is_a_limit(self) -> None:
        s = scaler(4.0, window_log2=(0, 4))
        s.scale(torch.ones(()))
        for _ in range(10):
            s.update_from(torch.tensor(0.0))
        assert s.get_scale() == 16.0


class TestByHand:
    def test_a_scale_set_by_hand_is_a_new_beginning(self) -> None:
        run = TestOverflow.hidden(scaler(64.0, 10))
        run.steps(20)
        assert run.scaler.get_scale() == 32.0
        run.scaler.update(8.0)
        scales = run.steps(40)
        assert max(scales) == 64.0

    @pytest.mark.parametrize(("largest", "scale"), [(None, 16.0), (2047.0, 16.0), (2048.0, 8.0)])
    def test_a_loop_that_unscales_by_itself_can_say_the_largest(self, largest: float | None, scale: float) -> None:
        s = scaler()
        s.scale(torch.ones(()))
        s.update_from(torch.tensor(0.0), None if largest is None else torch.tensor(largest))
        assert s.get_scale() == scale


class TestSettings:
    def test_fixed_growth_is_grad_scalers(self) -> None:
        steps = [1.0] * 30 + [NAN] + [1e4] * 7 + [1.0] * 20
        ours, stock = Run(scaler(8.0, 4, growth="fixed")), Run(GradScaler("cpu", init_scale=8.0, growth_interval=4))
        assert [ours.step(g) for g in steps] == [stock.step(g) for g in steps]

    @pytest.mark.parametrize("changes", [{"growth": "fixed"}, {"dynamic": False}])
    def test_where_growth_needs_no_measure_nothing_is_measured(
        self, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch, "aminmax", None)
        Run(scaler(**changes)).step()

    @pytest.mark.parametrize("interval", [1, 3, 70])
    def test_an_interval_that_is_changed_takes_effect(self, interval: int) -> None:
        s = scaler(8.0, 2000)
        run = Run(s)
        run.steps(5, gradient=1000.0)
        s.set_growth_interval(interval)
        assert set(run.steps(150, gradient=1000.0)) == {8.0}
        run.step(NAN)  # GradScaler's tracker is past a shorter interval, and starts again after an overflow only
        assert max(run.steps(25 * interval, gradient=0.001)) > 4.0


class _TakesNumbers(torch.optim.SGD):
    """As a fused optimizer: it reads `found_inf` on the device."""

    _step_supports_amp_scaling = True

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        pass


class TestWaiting:
    """On the meta device there are no numbers: to read one is an error."""

    @staticmethod
    def updates(s: GradScaler) -> int:
        """Returns how many updates are made before one reads a number."""
        weight = nn.Parameter(torch.ones(4, device="meta"))
        optimizer = _TakesNumbers([weight])
        for done in range(100):
            weight.grad = torch.ones_like(weight)
            s.scale(torch.ones((), device="meta"))
            s.step(optimizer)
            try:
                s.update()
            except NotImplementedError:
                return done
        return 100

    @pytest.mark.parametrize(
        ("settings", "waits_in"),
        [
            ({}, 25),
            ({"alarm_after": None}, 64),
            ({"alarm_after": None, "growth": "fixed"}, 64),
            ({"alarm_after": None, "growth_interval": 10}, 10),
            ({"alarm_after": None, "growth_interval": 64}, 64),
            ({"hysteresis": 2}, 25),
        ],
    )
    def test_how_seldom_the_host_waits_for_the_device(self, settings: dict[str, Any], waits_in: int) -> None:
        assert self.updates(LossScaler("meta", **settings)) == waits_in - 1


def test_the_largest_gradient_is_that_of_the_norm() -> None:
    """CPU and accelerators measure by different operators."""
    from floatwise.torch.scaling.evidence import _largest_gradients

    values: list[Tensor] = [torch.randn(3, 5), torch.zeros(0), torch.tensor(-7.5), torch.randn(4, 4).t()]
    parameters = [nn.Parameter(torch.empty_like(v)) for v in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = value
    largest = _largest_gradients(torch.optim.SGD(parameters, lr=0.0))
    norms = torch._foreach_norm([v for v in values if v.numel()], INF)
    assert largest == {torch.device("cpu"): torch.stack(norms).amax()}
    parameters[3].grad = torch.tensor([1.0, NAN, INF, 0.0]).expand(4, 4)
    assert not _largest_gradients(torch.optim.SGD(parameters, lr=0.0))[torch.device("cpu")].isfinite()
