# SPDX-License-Identifier: Apache-2.0
"""Modes `kahan` and `stochastic`, which are near float32; and what all modes save from standing still."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.masters.training import parameters
from torch import Tensor, nn, optim

from floatwise.torch.masters import MasterWeights, float32_value, give_master, set_float32_value, stored_of

ALL = ["split", "float32", "kahan", "stochastic"]
EXACT = ["split", "float32"]
FLOATS = st.floats(width=32, allow_subnormal=True)


# -- kahan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@given(values=st.lists(FLOATS, min_size=1, max_size=50))
def test_kahan_a_checkpoint_gives_weight_and_error_back(dtype: torch.dtype, values: list[float]) -> None:
    parameter = nn.Parameter(torch.zeros(len(values), dtype=dtype))
    stored = give_master(parameter, "kahan")
    set_float32_value(parameter, torch.tensor(values))
    total = float32_value(parameter)
    pair = parameter.detach().clone(), stored.master.extra.clone()  # type: ignore[union-attr]
    copy = nn.Parameter(torch.zeros(len(values), dtype=dtype))
    other = give_master(copy, "kahan")
    set_float32_value(copy, total)
    assert _same(copy.detach(), pair[0])
    assert _same(other.master.extra, pair[1])
    assert _same(float32_value(copy), total)


@given(values=st.lists(FLOATS.filter(lambda x: 1e-30 < abs(x) < 1e38), min_size=1, max_size=50))
def test_kahan_keeps_16_bits_of_mantissa(values: list[float]) -> None:
    parameter = nn.Parameter(torch.zeros(len(values), dtype=torch.bfloat16))
    give_master(parameter, "kahan")
    value = torch.tensor(values)
    set_float32_value(parameter, value)
    assert bool(((float32_value(parameter) - value).abs() <= value.abs() * 2.0**-16).all())
    assert torch.equal(parameter.detach(), float32_value(parameter).bfloat16())


# -- stochastic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.0625, 0.5, 0.75])
@pytest.mark.parametrize("value", [1.0, -1.0, 3.0, -1e-3, 2.0**-130, 0.0])
def test_stochastic_rounds_away_from_zero_as_often_as_the_value_is_near(value: float, share: float) -> None:
    count = 50_000
    low = torch.full((count,), value).bfloat16()
    high = torch.nextafter(low, torch.full_like(low, -torch.inf if value < 0 else torch.inf))
    master = give_master(nn.Parameter(torch.zeros(count, dtype=torch.bfloat16)), "stochastic").master
    weight = torch.empty_like(low)
    master.write(low.float() + share * (high.float() - low.float()), weight, 0, count)
    is_high = weight == high
    assert bool((is_high | (weight == low)).all())
    assert abs(float(is_high.float().mean()) - share) <= 5 * (share * (1 - share) / count) ** 0.5


def test_stochastic_keeps_what_needs_no_rounding() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, float("inf"), -float("inf"), float("nan")], dtype=torch.bfloat16))
    optimizer = MasterWeights(optim.SGD([parameter], lr=1.0), "stochastic")
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert _same(parameter.detach(), torch.tensor([1.0, float("inf"), -float("inf"), float("nan")]).bfloat16())


def test_stochastic_a_negative_nan_stays_one() -> None:
    stored = give_master(nn.Parameter(torch.zeros(17, dtype=torch.bfloat16)), "stochastic")
    weight = torch.zeros(17, dtype=torch.bfloat16)
    stored.master.write(torch.full((17,), -1, dtype=torch.int32).view(torch.float32), weight, 0, 17)
    assert bool(weight.isnan().all())


def stochastic(seed: int = 0) -> tuple[list[nn.Parameter], MasterWeights]:
    generator = torch.Generator().manual_seed(seed)
    weights = [nn.Parameter(torch.randn(300, generator=generator).bfloat16()) for _ in range(2)]
    return weights, MasterWeights(optim.AdamW(weights, lr=1e-4, fused=True), "stochastic")


def train(weights: list[nn.Parameter], optimizer: MasterWeights, first: int, last: int) -> None:
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        optimizer.step()


def test_stochastic_is_the_same_in_every_run_and_on_every_replica() -> None:
    (one, optimizer), (other, second) = stochastic(), stochastic()
    train(one, optimizer, 0, 5)
    torch.manual_seed(99)  # the global generator has no part in it, nor is it moved
    state = torch.get_rng_state()
    train(other, second, 0, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, one, other))


def test_stochastic_draws_anew_for_every_weight_and_step() -> None:
    weights = [nn.Parameter(torch.ones(4096, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = MasterWeights(optim.SGD(weights, lr=1.0), "stochastic")
    drawn = []
    for _ in range(2):
        for weight in weights:
            with torch.no_grad():
                weight.fill_(1.0)
            weight.grad = torch.full_like(weight, -(2.0**-8))
        optimizer.step()
        drawn += [weight.detach().clone() != 1.0 for weight in weights]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert 0.4 < float((one == other).float().mean()) < 0.6


def test_stochastic_resumes_exactly() -> None:
    weights, optimizer = stochastic()
    train(weights, optimizer, 0, 3)
    saved = deepcopy(([w.detach() for w in weights], optimizer.state_dict()))
    train(weights, optimizer, 3, 7)
    others, second = stochastic(seed=1)
    with torch.no_grad():
        for weight, value in zip(others, saved[0], strict=True):
            weight.copy_(value)
    second.load_state_dict(saved[1])
    train(others, second, 3, 7)
    assert all(map(torch.equal, weights, others))


def test_stochastic_goes_on_after_a_month_of_steps() -> None:
    weights, optimizer = stochastic()
    train(weights, optimizer, 0, 1)
    for group in optimizer.param_groups:
        group["stochastic_rounding_steps"] = 10**12
    train(weights, optimizer, 1, 2)
    assert optimizer.param_groups[0]["stochastic_rounding_steps"] == 10**12 + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [True, False])
def test_all_shapes_and_layouts_are_near_float32(dtype: torch.dtype, fused: bool) -> None:
    for mode in ALL if dtype is torch.bfloat16 else ["float32", "kahan"]:
        wide = parameters()
        low = [nn.Parameter(p.detach().clone()) for p in wide]
        reference = optim.AdamW(wide, lr=1e-3, fused=fused)
        optimizer = MasterWeights(optim.AdamW(low, lr=1e-3, fused=fused), mode, dtype=dtype)
        for _ in range(4):
            for w, p in zip(wide, low, strict=True):
                p.grad = torch.empty_like(p).copy_(torch.randn(p.shape))
                w.grad = p.grad.float()
            reference.step()
            optimizer.step()
        step = 2.0**-5 if mode == "stochastic" else 2.0**-13
        for w, p in zip(wide, low, strict=True):
            assert p.dtype is dtype
            assert p.stride() == w.stride()
            assert torch.allclose(optimizer.master(p), w.detach(), rtol=step, atol=step), (mode, p.shape)


# -- what stands still in 16 bits (facts: numerics, recipes) -----------------------------------------------------------


class Normed(nn.Module):
    """A small network whose norm has gains at 1, where bfloat16 has steps of 2**-7 upwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.first.weight.dtype
        out: Tensor = self.last(self.norm(self.first(x.to(dtype)).relu()))
        return out.float()


def gains_moved(make: Callable[[nn.Module], optim.Optimizer], steps: int = 60) -> float:
    torch.manual_seed(0)
    model = Normed()
    optimizer = make(model)
    x, y = torch.randn(64, 8), torch.randn(64, 4)
    for _ in range(steps):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return float((float32_value(model.norm.weight) - 1).abs().mean())


def test_norm_gains_move_as_in_float32() -> None:
    def adam(model: nn.Module) -> optim.Optimizer:
        return optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)

    def in_bfloat16(model: nn.Module) -> optim.Optimizer:
        return adam(model.bfloat16())

    wanted = gains_moved(adam)
    assert wanted > 0.005
    assert gains_moved(in_bfloat16) == 0.0  # without masters: AdamW's step is smaller than half of bfloat16's at 1
    for mode in ALL:

        def with_masters(model: nn.Module, mode: str = mode) -> optim.Optimizer:
            return MasterWeights(adam(model), mode, dtype=torch.bfloat16)

        moved = gains_moved(with_masters)
        assert moved == pytest.approx(wanted, rel=0.4 if mode == "stochastic" else 0.1), mode


def excess_loss(make: Callable[[nn.Parameter], optim.Optimizer], dtype: torch.dtype) -> float:
    """Zamirai et al. 2020, section 3: least squares whose weights are large beside their updates."""
    generator = torch.Generator().manual_seed(0)
    wanted = torch.rand(10, generator=generator) * 100
    weight = nn.Parameter(torch.zeros(10, dtype=dtype))
    optimizer = make(weight)
    losses = []
    for step in range(2500):
        x = torch.randn(10, generator=generator)
        error = x @ (weight.detach().float() - wanted)
        weight.grad = (error * x).to(dtype)
        optimizer.step()
        if step >= 1800:
            losses.append(float(((float32_value(weight) - wanted) ** 2).sum()) / 2)
    return sum(losses) / len(losses)


def test_the_least_squares_of_zamirai() -> None:
    def sgd(weight: nn.Parameter) -> optim.Optimizer:
        return optim.SGD([weight], lr=0.01)

    plain = excess_loss(sgd, torch.bfloat16)
    assert plain > 1.0
    for mode in ALL:

        def with_masters(weight: nn.Parameter, mode: str = mode) -> optim.Optimizer:
            return MasterWeights(sgd(weight), mode)

        assert excess_loss(with_masters, torch.bfloat16) < plain / (4 if mode == "stochastic" else 50), mode


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("fused", [True, False])
def test_the_second_moment_of_adam_decays(mode: str, fused: bool) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer: optim.Optimizer = optim.Adam([weight], betas=(0.9, 0.999), fused=fused)
    optimizer = MasterWeights(optimizer, mode)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    first = optimizer.state[weight]["exp_avg_sq"].clone()
    for _ in range(3000):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    second = optimizer.state[weight]["exp_avg_sq"]
    assert first.dtype is torch.float32
    assert (second / first).tolist() == pytest.approx([0.999**3000] * 3, rel=1e-3)


def test_the_second_moment_stands_still_in_bfloat16() -> None:
    """Stock: without masters, states have the format of the weights."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = optim.Adam([weight], betas=(0.9, 0.999), foreach=False)
    for gradient in (1.0, *[0.0] * 50):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        if gradient:
            first = optimizer.state[weight]["exp_avg_sq"].clone()
    assert torch.equal(optimizer.state[weight]["exp_avg_sq"], first)


# -- a weight that is changed from elsewhere --------------------------------------------------------------------------


def clamp_data(weight: nn.Parameter) -> None:
    weight.data.clamp_(-0.5, 0.5)


def copy(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.copy_(torch.linspace(-3, 3, weight.numel()))


def zero_some(weight: nn.Parameter) -> None:
    weight.data[::2] = 0.0


def initialise(weight: nn.Parameter) -> None:
    nn.init.normal_(weight)


def set_data(weight: nn.Parameter) -> None:
    weight.data = torch.linspace(-1e-6, 1e-6, weight.numel()).bfloat16()


@pytest.mark.parametrize("change", [clamp_data, copy, zero_some, initialise, set_data])
@pytest.mark.parametrize("mode", ALL)
def test_a_weight_changed_from_elsewhere_counts_as_written(mode: str, change: Callable[[Any], None]) -> None:
    weight = nn.Parameter(torch.randn(40))
    optimizer = MasterWeights(optim.SGD([weight], lr=1e-3), mode, dtype=torch.bfloat16)
    for _ in range(2):
        weight.grad = torch.randn(40).bfloat16()
        optimizer.step()
    exact, before = optimizer.master(weight), weight.detach().clone()
    change(weight)
    after = weight.detach().clone()
    value = optimizer.master(weight)
    assert bool(((value - after.float()).abs() <= after.float().abs() * 2.0**-8 + 1e-40).all())
    same = after == before
    assert torch.equal(value[same], exact[same])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()  # nothing comes back that was written over
    assert torch.equal(weight.detach(), after)


@pytest.mark.parametrize("mode", EXACT)
def test_pruning_after_every_step_does_not_stop_the_others(mode: str) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = MasterWeights(optim.SGD([weight], lr=1.0), mode, dtype=torch.bfloat16)
    for _ in range(64):
        weight.grad = torch.full((4,), 2.0**-12, dtype=torch.bfloat16)
        optimizer.step()
        with torch.no_grad():
            weight.mul_(torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert optimizer.master(weight)[::2].tolist() == [1 - 64 * 2.0**-12] * 2
    assert weight.tolist()[1::2] == [0.0, 0.0]


@pytest.mark.parametrize("mode", ALL)
def test_another_memory_format_takes_the_master_along(mode: str) -> None:
    weight = nn.Parameter(torch.randn(3, 4, 2, 2))
    optimizer = MasterWeights(optim.SGD([weight], lr=1e-3), mode, dtype=torch.bfloat16)
    before = optimizer.master(weight)
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    assert torch.equal(optimizer.master(weight), before)
    weight.data = weight.data.transpose(0, 3).contiguous().transpose(0, 3)
    assert torch.equal(optimizer.master(weight), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ALL)
def test_the_master_follows_its_weight_to_another_device(mode: str) -> None:
    model = nn.Linear(5, 3)
    optimizer = MasterWeights(optim.SGD(model.parameters(), lr=1e-3), mode, dtype=torch.bfloat16, model=model)
    before = optimizer.master(model.weight)
    model.cuda()
    assert torch.equal(optimizer.master(model.weight).cpu(), before)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    assert torch.allclose(optimizer.master(model.weight).cpu(), before - 1e-3, atol=2.0**-8)


def test_the_master_of_a_weight_that_is_float32_again_is_forgotten() -> None:
    model = nn.Linear(3, 2)
    optimizer = MasterWeights(optim.SGD(model.parameters(), lr=2.0**-12), dtype=torch.bfloat16)
    model.float()
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    assert stored_of(model.weight) is None
    assert torch.equal(model.weight.detach(), before - 2.0**-12)


@pytest.mark.parametrize("replacement", [torch.zeros(5), torch.zeros(4, 2)[:, 0]], ids=["another shape", "gaps"])
def test_data_that_does_not_fit_the_master_is_refused(replacement: Tensor) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = MasterWeights(optim.SGD([weight], lr=1.0), dtype=torch.bfloat16)
    weight.data = replacement.bfloat16() if replacement.is_contiguous() else torch.zeros(4, 2).bfloat16()[:, 0]
    with pytest.raises(ValueError, match="make MasterWeights anew"):
        optimizer.master(weight)


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    assert left is not None
    assert right is not None
    bits = torch.int32 if left.element_size() == 4 else torch.int16
    return bool(
        ((left.view(bits) == right.view(bits)) | (left.isnan() & right.isnan()) | ((left == 0) & (right == 0))).all()
    )
