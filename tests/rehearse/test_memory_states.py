# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.plan import recipe
from floatwise.rehearse.memory_states import Sharding, WeightCounts, optimizer_slots, state_bytes
from floatwise.torch import prepare
from floatwise.torch.masters import stored_of

_MAKERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "ASGD": optim.ASGD,
    "Adadelta": optim.Adadelta,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "Adam amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "AdamW": optim.AdamW,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": optim.RMSprop,
    "RMSprop momentum": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", _MAKERS)
def test_slots_are_what_the_optimizer_keeps(name: str) -> None:
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = _MAKERS[name]([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = [s for s in optimizer.state[weight].values() if isinstance(s, Tensor) and s.numel() == weight.numel()]
    assert optimizer_slots(type(optimizer).__name__, optimizer.param_groups[0]) == len(kept)


def test_an_unknown_class_has_no_slots() -> None:
    assert optimizer_slots("Sophia", {}) is None


@pytest.mark.parametrize(
    ("name", "bytes_per_weight"),
    [
        ("fp32", {"weights": 4, "masters": 0, "gradients": 4, "optimizer": 8}),
        ("bf16-mixed", {"weights": 4, "masters": 0, "gradients": 4, "optimizer": 8}),
        ("bf16-master", {"weights": 2, "masters": 2, "gradients": 2, "optimizer": 8}),
        ("fp16-master", {"weights": 2, "masters": 4, "gradients": 4, "optimizer": 8}),
    ],
)
def test_closed_form_is_what_the_runtime_keeps(name: str, bytes_per_weight: dict[str, int]) -> None:
    model = nn.Linear(64, 64, bias=False)
    precision = prepare(model, optim.Adam(model.parameters()), recipe(name))
    with precision.forward():
        loss = model(torch.ones(2, 64)).float().mean()
    precision.backward(loss)
    precision.step()
    (weight,) = model.parameters()
    assert weight.grad is not None
    state = precision.optimizers[0].state[weight]
    low = weight.itemsize == 2
    kept = state_bytes(WeightCounts(64 * 64 * low, 64 * 64 * (not low)), recipe(name), 2)
    real = {
        "weights": weight.nbytes,
        "masters": _master_bytes(weight),
        "gradients": weight.grad.nbytes,
        "optimizer": state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes,
    }
    precision.close()
    assert real == {kind: 64 * 64 * size for kind, size in bytes_per_weight.items()}
    assert {kind: getattr(kept, f"{kind}_bytes") for kind in real} == real


def _master_bytes(weight: Tensor) -> int:
    stored = stored_of(weight)
    return 0 if stored is None or stored.master.extra is None else stored.master.extra.nbytes


@pytest.mark.parametrize(("mode", "expected"), [("split", 2), ("float32", 4), ("kahan", 2), ("stochastic", 0)])
def test_each_mode_of_masters_has_its_bytes(mode: Any, expected: int) -> None:
    plan = recipe("bf16-master", weights={"master": mode})
    assert state_bytes(WeightCounts(1000, 0), plan, 2).masters_bytes == 1000 * expected


def test_fsdp_shares_states_and_gathers_units() -> None:
    counts = WeightCounts(trained_16_bit=0, trained_float32=8000, unit=1000)
    whole = state_bytes(counts, recipe("bf16-mixed"), 2)
    part = state_bytes(counts, recipe("bf16-mixed"), 2, Sharding("fsdp", 4))
    for kind in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert getattr(part, kind) == getattr(whole, kind) / 4
    # Two units of bfloat16 weights, one of bfloat16 gradients, one of float32 sums.
    assert part.exchange_bytes == 1000 * (2 * 2 + 2 + 4)
    larger = state_bytes(counts, recipe("bf16-mixed"), 2, Sharding("fsdp", 4, unit=3000))
    assert larger.exchange_bytes == 3 * part.exchange_bytes


def test_ddp_keeps_gradients_twice_unless_they_are_views() -> None:
    counts = WeightCounts(0, 1000)
    assert state_bytes(counts, recipe("fp32"), 2, Sharding("ddp", 2)).exchange_bytes == 4000
    assert state_bytes(counts, recipe("fp32"), 2, Sharding("ddp", 2, gradients_as_views=True)).exchange_bytes == 0


def test_no_processes_are_refused() -> None:
    with pytest.raises(BadInputError, match="world_size 0"):
        Sharding("fsdp", 0)
