# SPDX-License-Identifier: Apache-2.0
"""Several micro-batches for one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tests.torch.loop_parts import (
    AUTOCAST,
    OPTIMIZERS,
    Batch,
    batches,
    loss_of,
    model,
    overflowing,
    prepared,
    same,
    scaled,
    sgd,
    weights,
)
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.torch import Precision, StepInfo
from floatwise.torch.accumulation import without_reduction
from floatwise.torch.masters import float32_value

PARTS = 4


def accumulate(precision: Precision, net: nn.Module, data: list[Batch]) -> list[StepInfo]:
    infos = []
    for number, batch in enumerate(data, 1):
        last = number % PARTS == 0
        with precision.accumulate(last=last):
            with precision.forward():
                loss = loss_of(net, batch)
            precision.backward(loss, accumulation_steps=PARTS)
        if last:
            infos.append(precision.step(clip_norm=0.5))
            precision.zero_grad()
    return infos


def accumulate_by_hand(net: nn.Module, optimizer: Optimizer, data: list[Batch], name: str) -> None:
    scaler = GradScaler("cpu", enabled=name == "fp16-mixed")
    for number, batch in enumerate(data, 1):
        dtype = AUTOCAST[name]
        with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
            loss = loss_of(net, batch) / PARTS
        scaler.scale(loss).backward()
        if number % PARTS == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", AUTOCAST)
def test_micro_batches_are_a_hand_written_loop_bit_for_bit(name: str, kind: str) -> None:
    by_hand, ours = model(), model()
    accumulate_by_hand(by_hand, OPTIMIZERS[kind](by_hand), batches(3 * PARTS), name)
    with prepared(ours, OPTIMIZERS[kind](ours), name) as precision:
        infos = accumulate(precision, ours, batches(3 * PARTS))
    assert [info.stepped for info in infos] == [True, True, True]
    assert same(weights(ours), weights(by_hand))


def test_one_overflow_skips_the_whole_step_and_nothing_of_it_stays() -> None:
    untouched, net = model(), model()
    with prepared(untouched, sgd(untouched), scaled()) as precision:
        accumulate(precision, untouched, batches(PARTS))
    with prepared(net, sgd(net), scaled(2 * 65536.0)) as precision:
        for batch in batches(PARTS - 1):
            precision.backward(loss_of(net, batch))
        precision.backward(overflowing(net))
        assert precision.step() == StepInfo(stepped=False, skipped=True, loss_scale=65536.0)
        precision.zero_grad()
        accumulate(precision, net, batches(PARTS))
    assert same(weights(net), weights(untouched))


@pytest.mark.parametrize("name", ["fp32", "fp16-mixed"])
def test_a_step_after_a_micro_batch_that_was_not_the_last_is_refused(name: str) -> None:
    net = model()
    with prepared(net, sgd(net), name) as precision:
        with precision.accumulate(last=False):
            precision.backward(loss_of(net, batches(1)[0]))
        with pytest.raises(BadInputError, match=r"runs in accumulate\(last=True\)"):
            precision.step()
        with precision.accumulate(last=True):
            precision.backward(loss_of(net, batches(1)[0]))
        assert precision.step().stepped


def test_dropped_micro_batches_do_not_count() -> None:
    net = model()
    with prepared(net, sgd(net), "fp32") as precision:
        with precision.accumulate(last=False):
            precision.backward(loss_of(net, batches(1)[0]))
        precision.zero_grad()
        assert precision.step() == StepInfo(stepped=False, skipped=False, loss_scale=1.0)


@pytest.mark.parametrize("steps", [0, -1, 2.0, True])
def test_a_number_of_micro_batches_that_is_none(steps: Any) -> None:
    net = model()
    with prepared(net, sgd(net), "fp32") as precision, pytest.raises(BadInputError, match="a whole number from 1"):
        precision.backward(loss_of(net, batches(1)[0]), accumulation_steps=steps)


@pytest.mark.parametrize("name", ["bf16-master", "fp16-master"])
@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="gradients have the format of their weight")
def test_gradients_of_16_bit_weights_add_up_in_float32(name: str) -> None:
    net = nn.Linear(2, 1, bias=False)
    count = 3000
    with prepared(net, sgd(net), scaled(1.0, name=name) if name == "fp16-master" else name) as precision:
        stock = torch.zeros_like(net.weight)
        for _ in range(count):
            precision.backward(net.weight.sum())
            stock += torch.ones_like(stock)
        precision.unscale()
        assert net.weight.grad is not None
        assert net.weight.grad.tolist() == [[count, count]]
        assert (stock == {"bf16-master": 256, "fp16-master": 2048}[name]).all()
        before = float32_value(net.weight)
        assert precision.step().stepped
        torch.testing.assert_close(float32_value(net.weight), before - 0.1 * count)


class Wrapper(nn.Module):
    """What DDP, FSDP1 and FSDP2 offer, each by its own name; remembers whether it reduces in each forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.reduces = True
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Any:
        self.seen.append(self.reduces)
        return self.inner(x)


class LikeDdp(Wrapper):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.reduces = False
        try:
            yield
        finally:
            self.reduces = True


class LikeFsdp2(Wrapper):
    def set_requires_gradient_sync(self, on: bool) -> None:
        self.reduces = on


WRAPPED: dict[str, Callable[[], Any]] = {
    "DDP": lambda: LikeDdp(nn.Linear(2, 2)),
    "FSDP2": lambda: LikeFsdp2(nn.Linear(2, 2)),
    "compiled DDP": lambda: torch.compile(LikeDdp(nn.Linear(2, 2)), backend="eager"),
    "two of them in a model": lambda: nn.Sequential(LikeDdp(nn.Linear(2, 2)), LikeFsdp2(nn.Linear(2, 2))),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_only_the_last_micro_batch_is_reduced(kind: str) -> None:
    net = WRAPPED[kind]()
    wrappers = [m for m in net.modules() if isinstance(m, Wrapper)]
    x = torch.ones(1, 2)
    with without_reduction(net):
        assert not any(w.reduces for w in wrappers)
    assert all(w.reduces for w in wrappers)
    with pytest.raises(KeyError), without_reduction(net):
        raise KeyError
    if "compiled" in kind:
        return
    with prepared(net, sgd(net), "fp32") as precision:
        for last in (False, False, True):
            with precision.accumulate(last=last):
                precision.backward(net(x).sum())
        assert precision.step().stepped
    assert all(w.seen == [False, False, True] for w in wrappers)
