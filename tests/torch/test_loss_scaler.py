# SPDX-License-Identifier: Apache-2.0
"""What a loss scaler is beside a GradScaler: its arguments, its bounds, and how it refuses."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.errors import BadInputError
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


class TestContract:
    def test_it_is_a_grad_scaler_with_its_arguments(self) -> None:
        own = inspect.signature(LossScaler).parameters
        for name, parameter in inspect.signature(GradScaler).parameters.items():
            assert own[name].kind == parameter.kind
            assert name == "device" or own[name].default == parameter.default
        assert list(own)[:6] == list(inspect.signature(GradScaler).parameters)
        assert issubclass(LossScaler, GradScaler)

    def test_every_argument_is_described(self) -> None:
        arguments = (inspect.getdoc(LossScaler) or "").partition("Args:")[2].partition("Raises:")[0]
        described = re.findall(r"^  (\w+): ", arguments, re.MULTILINE)
        assert described == list(inspect.signature(LossScaler).parameters)

    @pytest.mark.parametrize("growth", ["headroom", "fixed"])
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @settings(max_examples=15, deadline=None)
    @given(steps=st.lists(st.sampled_from([GOOD, GOOD, 3.0, INF, math.nan]), max_size=12))
    def test_weights_and_scale_are_grad_scalers(self, kind: str, growth: Any, steps: list[float]) -> None:
        ours, theirs = scaler(growth_interval=2, growth=growth), GradScaler("cpu", init_scale=8.0, growth_interval=2)
        sides = [(s, *trained(kind)) for s in (ours, theirs)]
        for factor in steps:
            if ours.get_scale() == ours.floor and not math.isfinite(factor):
                return  # from here on the two differ on purpose
            for s, weight, optimizer in sides:
                one_step(s, weight, optimizer, factor)
            assert torch.equal(sides[0][1], sides[1][1])
            assert ours.get_scale() == theirs.get_scale()
            assert ours._get_growth_tracker() == theirs._get_growth_tracker()

    def test_float16_gradients_are_refused_and_fused_optimizers_take_them(self) -> None:
        weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
        s = scaler()
        s.scale(weight.float().sum()).backward()
        with pytest.raises(ValueError, match="FP16"):
            s.step(torch.optim.SGD([weight], lr=0.1))
        s = scaler()
        s.scale(weight.float().sum()).backward()
        s.step(torch.optim.SGD([weight], lr=0.1, fused=True))
        assert s.last_step == "stepped"

    def test_disabled_it_passes_all_through(self) -> None:
        s = LossScaler("cpu", enabled=False)
        weight, optimizer = trained()
        loss = weight.sum()
        assert s.scale(loss) is loss
        loss.backward()
        s.unscale_(optimizer)
        s.step(optimizer)
        s.update()
        assert torch.equal(weight, torch.full((4,), 0.9))
        assert (s.get_scale(), s.is_enabled(), s.state_dict()) == (1.0, False, {})
        assert (s.last_step, s.skipped_steps, s.consecutive_skips) == ("stepped", 0, 0)
        s.load_state_dict({})

    @pytest.mark.parametrize("by_name", [False, True])
    def test_a_closure_is_refused_with_what_to_call_instead(self, by_name: bool) -> None:
        weight, optimizer = trained()
        s = scaler()
        s.scale(weight.sum()).backward()
        arguments: dict[str, Any] = {"closure": lambda: 0.0} if by_name else {}
        with pytest.raises(RuntimeError, match=r"got a closure.*step_with_closure"):
            s.step(optimizer, *([] if by_name else [lambda: 0.0]), **arguments)
        s.step(optimizer, None)  # Accelerate passes the closure that is not there by position
        assert s.last_step == "stepped"

    def test_an_optimizer_that_takes_the_scaler_does_all_itself(self) -> None:
        class Custom(torch.optim.SGD):
            _step_supports_amp_scaling = True

            def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:
                assert self.param_groups[0]["params"][0].grad[0] == 8.0
                grad_scaler.unscale_(self)
                return super().step(closure)

        weight, _ = trained()
        s, optimizer = scaler(), Custom([weight], lr=0.1)
        s.scale(weight.sum()).backward()
        with pytest.warns(FutureWarning):
            s.step(optimizer)
        assert s.last_step == "stepped"
        assert torch.equal(weight, torch.full((4,), 0.9))


class TestBounds:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_the_floor_holds_and_the_weights_survive(self, kind: str) -> None:
        weight, optimizer = trained(kind)
        s = LossScaler("cpu", alarm_after=None)
        for _ in range(300):
            one_step(s, weight, optimizer, INF)
        assert s.get_scale() == 1.0
        assert torch.equal(weight, torch.ones(4))
        assert (s.skipped_steps, s.consecutive_skips) == (300, 300)
        one_step(s, weight, optimizer)
        assert weight.isfinite().all()
        assert not torch.equal(weight, torch.ones(4))
        assert s.consecutive_skips == 0

    @pytest.mark.parametrize(
        ("first", "factor", "last"),
        [
            (8.0, GOOD, 32.0),
            (8.0, INF, 2.0),
            (1.0, INF, 1.0),
            (64.0, GOOD, 64.0),
            (48.0, GOOD, 64.0),
            (3.0, INF, 1.0),
            (0.25, INF, 0.25),
            (0.25, GOOD, 1.0),
            (256.0, GOOD, 256.0),
            (256.0, INF, 64.0),
        ],
    )
    def test_two_steps_move_the_scale_within_its_bounds(self, first: float, factor: float, last: float) -> None:
        weight, optimizer = trained()
        s = scaler(first, growth_interval=1, ceiling=64.0, alarm_after=None)
        for _ in range(2):
            one_step(s, weight, optimizer, factor)
        assert s.get_scale() == last

    @settings(max_examples=30, deadline=None)
    @given(steps=st.lists(st.booleans(), max_size=60), floor=st.sampled_from([2.0**-126, 0.5, 1.0, 4.0]))
    def test_any_run_keeps_weights_finite(self, steps: list[bool], floor: float) -> None:
        weight, optimizer = trained()
        s = scaler(4.0, growth_interval=1, floor=floor, ceiling=16.0, alarm_after=None)
        for good in steps:
            one_step(s, weight, optimizer, GOOD if good else INF)
            assert floor <= s.get_scale() <= 16.0
            assert weight.isfinite().all()
        assert s.skipped_steps == steps.count(False)

    @pytest.mark.parametrize("factor", [GOOD, INF])
    def test_a_static_scale_stays_and_still_skips(self, factor: float) -> None:
        weight, optimizer = trained()
        s = scaler(512.0, growth_interval=1, dynamic=False)
        for _ in range(3):
            one_step(s, weight, optimizer, factor)
        assert s.get_scale() == 512.0
        assert s.skipped_steps == (3 if factor == INF else 0)
        assert torch.equal(weight, torch.ones(4)) == (factor == INF)

    @pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, 2.0**-140, 1e39])
    def test_scales_that_would_ruin_weights_are_refused(self, value: float) -> None:
        weight, _ = trained()
        s = scaler()
        s.scale(weight.sum())
        for make in (
            lambda: scaler(value),
            lambda: scaler(floor=value),
            lambda: s.update(value),
            lambda: s.update(torch.tensor(value, dtype=torch.float64)),
        ):
            with pytest.raises(BadInputError, match="expected a number"):
                make()

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"floor": 4.0, "ceiling": 2.0}, r"floor 4\.0 above ceiling 2\.0"),
            ({"growth": "blind"}, "growth 'blind'; expected 'headroom' or 'fixed'"),
            ({"headroom_bits": -1}, "headroom_bits -1; expected 0 to 40"),
            ({"headroom_bits": 41}, "headroom_bits 41; expected 0 to 40"),
            ({"hysteresis": 0}, "hysteresis 0; expected 1 or more"),
            ({"alarm_after": 0}, "alarm_after 0; expected 1 or more.*or None"),
        ],
    )
    def test_settings_out_of_bounds_are_refused(self, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(BadInputError, match=says):
            scaler(**settings)

    @pytest.mark.parametrize("new", [32.0, 32, torch.tensor(32.0), torch.tensor([32.0])])
    def test_a_scale_set_by_hand(self, new: Any) -> None:
        weight, _ = trained()
        s = scaler()
        s.scale(weight.sum())
        s.update(new)
        assert s.get_scale() == 32.0
        assert s.skipped_steps == 0
