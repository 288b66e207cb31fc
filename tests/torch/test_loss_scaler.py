# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
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
            assert own[name].default == parameter.default
            assert own[name].kind == parameter.kind
        assert list(own)[:6] == list(inspect.signature(GradScaler).parameters)
        assert issubclass(LossScaler, GradScaler)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @settings(max_examples=15, deadline=None)
    @given(steps=st.lists(st.sampled_from([GOOD, GOOD, 3.0, INF, math.nan]), max_size=12))
    def test_weights_and_scale_are_grad_scalers(self, kind: str, steps: list[float]) -> None:
        ours, theirs = scaler(growth_interval=2), GradScaler("cpu", init_scale=8.0, growth_interval=2)
        sides = [(s, *trained(kind)) for s in (ours, theirs)]
        for factor in steps:
            if ours.get_scale() == ours.floor and not math.isfinite(factor):
                return  # from here on the two differ on purpose
            for s, weight, optimizer in sides:
                one_step(s, weight, optimizer, factor)
            assert torch.equal(sides[0][1], sides[1][1])
            assert ours.get_scale() == theirs.get_scale()
            assert ours._get_growth_tracker() == theirs._get_growth_tracker()

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_unscaling_and_clipping_first(self, kind: str) -> None:
        results = []
        for s in (scaler(), GradScaler("cpu", init_scale=8.0)):
            weight, optimizer = trained(kind)
            for _ in range(3):
                optimizer.zero_grad()
                s.scale((weight * 5).sum()).backward()
                s.unscale_(optimizer)
                nn.utils.clip_grad_norm_([weight], 1.0)
                s.step(optimizer, None)  # Accelerate passes the closure by position
                s.update()
            results.append(weight.detach().clone())
        assert torch.equal(*results)

    @pytest.mark.parametrize("misuse", ["step", "update", "unscale_", "unscale twice", "step twice", "no gradients"])
    def test_misuse_is_refused_as_grad_scaler_refuses_it(self, misuse: str) -> None:
        def run(s: GradScaler) -> None:
            weight, optimizer = trained()
            if misuse in ("step", "unscale_"):
                getattr(s, misuse)(optimizer)
            if misuse == "update":
                s.update()
            loss = s.scale(weight.sum())
            if misuse != "no gradients":
                loss.backward()
            for _ in range(2):
                (s.unscale_ if misuse == "unscale twice" else s.step)(optimizer)

        caught = []
        for s in (scaler(), GradScaler("cpu")):
            with pytest.raises((AssertionError, RuntimeError)) as info:
                run(s)
            caught.append((type(info.value), str(info.value)))
        assert caught[0] == caught[1]

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

    def test_sparse_gradients(self) -> None:
        results = []
        for s in (scaler(), GradScaler("cpu", init_scale=8.0)):
            torch.manual_seed(0)
            embedding = nn.Embedding(4, 2, sparse=True)
            optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
            s.scale(embedding(torch.tensor([1, 1, 3])).sum()).backward()
            s.step(optimizer)
            results.append(embedding.weight.detach())
        assert torch.equal(*results)

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

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
    def test_without_cuda_it_warns_and_disables_itself(self) -> None:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            s = LossScaler()
        assert not s.is_enabled()
        assert (s.get_scale(), s.state_dict(), s.skipped_steps) == (1.0, {}, 0)

    def test_a_closure_is_refused_by_position_and_by_name(self) -> None:
        weight, optimizer = trained()
        s = scaler()
        s.scale(weight.sum()).backward()
        with pytest.raises(RuntimeError, match="closure"):
            s.step(optimizer, lambda: 0.0)
        with pytest.raises(RuntimeError, match="Closure"):
            s.step(optimizer, closure=lambda: 0.0)

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
        s = LossScaler("cpu")
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
        s = scaler(first, growth_interval=1, ceiling=64.0)
        for _ in range(2):
            one_step(s, weight, optimizer, factor)
        assert s.get_scale() == last

    @settings(max_examples=30, deadline=None)
    @given(steps=st.lists(st.booleans(), max_size=60), floor=st.sampled_from([2.0**-126, 0.5, 1.0, 4.0]))
    def test_any_run_keeps_weights_finite(self, steps: list[bool], floor: float) -> None:
        weight, optimizer = trained()
        s = scaler(4.0, growth_interval=1, floor=floor, ceiling=16.0)
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

    def test_bounds_the_wrong_way_round(self) -> None:
        with pytest.raises(BadInputError, match=r"floor 4\.0 above ceiling 2\.0"):
            scaler(floor=4.0, ceiling=2.0)

    @pytest.mark.parametrize("new", [32.0, 32, torch.tensor(32.0)])
    def test_a_scale_set_by_hand(self, new: Any) -> None:
        weight, _ = trained()
        s = scaler()
        s.scale(weight.sum())
        s.update(new)
        assert s.get_scale() == 32.0
        assert s.skipped_steps == 0


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
        s = scaler()
        for _ in range(200):
            one_step(s, weight, optimizer, INF)
        assert len(s._pending) < 64
        assert s.skipped_steps == 200

    def test_a_loop_that_unscales_by_itself(self) -> None:
        s = scaler(growth_interval=1)
        s.scale(torch.zeros(()))
        s.update_from(torch.tensor(0.0))
        assert (s.get_scale(), s.last_step) == (16.0, "stepped")
        s.update_from(torch.tensor(2.0))
        assert (s.get_scale(), s.last_step, s.skipped_steps) == (8.0, "skipped", 1)


def test_nested_outputs_are_scaled_in_place_of_their_kind() -> None:
    s = scaler()
    nested: Any = [torch.ones(()), (torch.ones(()), torch.ones(2))]
    scaled: Any = s.scale(nested)
    assert isinstance(scaled[1], tuple)
    assert isinstance(scaled[0], Tensor)
    assert scaled[1][1].tolist() == [8.0, 8.0]
