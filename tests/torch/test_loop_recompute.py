# SPDX-License-Identifier: Apache-2.0
"""Forwards that are computed again in the backward, and models that were compiled before `prepare`."""

from __future__ import annotations

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
from torch.utils.checkpoint import checkpoint

from floatwise.plan import ModulePolicy, Plan, Policy, recipe


class Blocks(nn.Module):
    """Three blocks with dropout; the middle one may be recomputed."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, 32)
        self.middle = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Softmax(-1))
        self.last = nn.Linear(32, 32)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        if self.reentrant is None:
            x = self.middle(x)
        else:
            x = checkpoint(self.middle, x, use_reentrant=self.reentrant)
        return self.last(x)


def with_island(name: str) -> Plan:
    island = ModulePolicy(module="middle.3", policy=Policy(compute_dtype="float32"))
    return recipe(name, modules=(island,))


PLANS = {
    "fp32": recipe("fp32"),
    "bf16-mixed": recipe("bf16-mixed"),
    "fp16-mixed": recipe("fp16-mixed"),
    "bf16-mixed with an island": with_island("bf16-mixed"),
    "fp16-mixed with an island": with_island("fp16-mixed"),
    "bf16-master": recipe("bf16-master"),
}


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", PLANS)
def test_recomputing_changes_no_bit(name: str, reentrant: bool) -> None:
    results = []
    for recomputes in (None, reentrant):
        net = Blocks(recomputes)
        torch.manual_seed(3)
        with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
            assert all([train_step(precision, net, batch) for batch in batches(3)])
            results.append(weights(net))
    assert same(*results)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_skipped_step_is_forgotten_with_recomputing_too(reentrant: bool) -> None:
    net = Blocks(reentrant)
    with prepared(net, OPTIMIZERS["AdamW"](net), scaled()) as precision:
        before = weights(net)
        with precision.forward():
            loss = loss_of(net, batches(1)[0]) + overflowing(net)
        precision.backward(loss)
        assert precision.step().skipped
        precision.zero_grad()
        assert same(weights(net), before)
        assert train_step(precision, net, batches(1)[0])


def compiled_and_plain(backend: str, name: str) -> tuple[list[Tensor], list[Tensor]]:
    results = []
    torch.compiler.reset()
    for compiled in (False, True):
        net = model()
        called: Any = torch.compile(net, backend=backend) if compiled else net
        with prepared(called, OPTIMIZERS["AdamW"](net), name) as precision:
            assert all([train_step(precision, called, batch) for batch in batches(3)])
            results.append(weights(net))
    return results[0], results[1]


# torch.compile imports parts of torch that warn of their own deprecation.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master"])
def test_a_model_compiled_before_trains_the_same(name: str) -> None:
    plain, compiled = compiled_and_plain("aot_eager", name)
    assert same(plain, compiled)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("name", ["bf16-mixed", "bf16-master"])
def test_a_model_compiled_by_inductor_trains_nearly_the_same(name: str) -> None:
    plain, compiled = compiled_and_plain("inductor", name)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=5e-3)  # AdamW: lr 0.01 a step, sign-like at first
