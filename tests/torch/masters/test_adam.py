# SPDX-License-Identifier: Apache-2.0
"""The compiled Adam pass gives the bits of PyTorch's fused kernel, and is left out where it would not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from floatwise.torch import MasterWeights
from floatwise.torch.masters import adam, fused, kernel_in_use

needs_compiler = pytest.mark.skipif(kernel_in_use() is None, reason="no C compiler here")

#: Whole lines, ends, a share of the threads each, and nothing.
SIZES = (1, 15, 16, 17, 64, 1000, 40_000, 70_001, 0)
SETTINGS: dict[str, dict[str, Any]] = {
    "as they come": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "small betas": {"betas": (0.2, 0.5)},
    "a tensor for the rate": {"lr": torch.tensor(0.01)},
    "large eps": {"eps": 1e-2, "lr": 0.1},
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    adam.adam_kernel.cache_clear()
    yield
    adam.adam_kernel.cache_clear()


def pair(kind: type[Adam], settings: dict[str, Any]) -> tuple[list[Tensor], Adam, list[Tensor], MasterWeights]:
    torch.manual_seed(0)
    exact = [nn.Parameter(torch.randn(size)) for size in SIZES]
    stored = [nn.Parameter(p.detach().clone()) for p in exact]
    return (
        list(exact),
        kind(exact, fused=True, **settings),
        list(stored),
        MasterWeights(kind(stored, fused=True, **settings), dtype=torch.bfloat16),
    )


def train(kind: type[Adam], settings: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> None:
    exact, plain, stored, masters = pair(kind, settings)
    for number in range(5):
        for a, b in zip(exact, stored, strict=True):
            if number == 2 and a.numel() == 64:
                a.grad = b.grad = None  # its step numbers fall behind the others'
                continue
            grad = (torch.randn_like(a) * 10.0 ** (number - 3)).to(dtype)
            a.grad = grad.float()
            b.grad_dtype = None
            b.grad = grad
        plain.step()
        masters.step()
    for a, b in zip(exact, stored, strict=True):
        assert torch.equal(a, masters.master(b))
        for name, state in plain.state[a].items():
            assert torch.equal(state, masters.state[b][name]), name


@needs_compiler
@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("name", SETTINGS)
def test_bits_are_those_of_the_fused_kernel(kind: type[Adam], name: str) -> None:
    assert adam.adam_kernel() is not None
    train(kind, SETTINGS[name])


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_whatever_the_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        train(AdamW, {})
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="gradients have the weight's format before 2.10")
def test_float32_gradients_of_16_bit_weights() -> None:
    train(AdamW, {}, torch.float32)


def test_nothing_is_compiled_where_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam, "_agrees", lambda _: False)
    assert adam.adam_kernel() is None
    train(AdamW, {"weight_decay": 0.1})


def test_amsgrad_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "adam_kernel", lambda: pytest.fail("it has no room for a third state"))
    train(Adam, {"amsgrad": True})


@needs_compiler
def test_weights_that_become_nan_are_nan() -> None:
    weight = nn.Parameter(torch.ones(32))
    masters = MasterWeights(AdamW([weight], fused=True), dtype=torch.bfloat16)
    for _ in range(2):
        weight.grad = torch.full_like(weight, float("nan"))
        masters.step()
    assert bool(weight.isnan().all())
    assert bool(masters.master(weight).isnan().all())
