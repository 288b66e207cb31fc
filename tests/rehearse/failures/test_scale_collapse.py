# SPDX-License-Identifier: Apache-2.0
"""Overflow after overflow: PyTorch's scaler goes to zero and the next healthy step writes NaN; ours has a floor."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.rehearse.failures.models import Classifier, FeedForward, Residual, classification
from tests.rehearse.failures.running import judged, reasons
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from floatwise.errors import NonFiniteGradientsError
from floatwise.torch import LossScaler


class Run:
    """One weight of 1 that is trained under a scaler."""

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)

    def step(self, loss: Callable[[Tensor], Tensor]) -> float:
        """Returns the scale after a step on a loss of the weight."""
        self.optimizer.zero_grad()
        self.scaler.scale(loss(self.model.weight).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        scale: float = self.scaler.get_scale()
        return scale

    @property
    def weight(self) -> float:
        return self.model.weight.item()


def infinite(weight: Tensor) -> Tensor:
    return weight * math.inf


def healthy(weight: Tensor) -> Tensor:
    return weight * 2


def tiny(weight: Tensor) -> Tensor:
    return weight * 1e-30


def test_pytorch_scales_down_to_zero_in_silence_and_then_writes_nan() -> None:
    run = Run(GradScaler("cpu"))
    scales = [run.step(infinite) for _ in range(166)]
    assert (scales[0], scales[15]) == (32768.0, 1.0)
    assert scales[164] > 0.0
    assert scales[165] == 0.0
    assert run.weight == 1.0
    run.step(healthy)
    assert math.isnan(run.weight)


def test_the_loss_scaler_stops_at_its_floor_says_so_and_goes_on_unharmed() -> None:
    run = Run(LossScaler("cpu"))
    run.scaler.watch(run.model)  # type: ignore[attr-defined]
    assert [run.step(infinite) for _ in range(16)][-1] == 1.0
    with pytest.warns(UserWarning, match="weight"):
        run.step(infinite)
    for _ in range(7):
        run.step(infinite)
    with pytest.raises(NonFiniteGradientsError, match="weight"):
        run.step(infinite)
    assert run.step(healthy) == 1.0
    assert run.weight == pytest.approx(1.0 - 2e-3)


@pytest.mark.parametrize(
    ("scaler", "last"),
    [
        (GradScaler("cpu", growth_interval=1), 2.0**127),  # 1.7e38
        (LossScaler("cpu", growth_interval=1, growth="fixed"), 2.0**24),
        (LossScaler("cpu", growth_interval=1), 2.0**24),
    ],
    ids=["pytorch", "fixed", "headroom"],
)
def test_where_growth_ends(scaler: GradScaler, last: float) -> None:
    run = Run(scaler)
    assert [run.step(tiny) for _ in range(200)][-1] == last


def exploding() -> nn.Module:
    return Classifier(Residual(FeedForward()))


def test_a_training_whose_gradients_outgrow_every_scale_is_refused_in_float16_alone() -> None:
    make = classification(exploding, weight=lambda step: 1e9 if step else 1.0)
    verdict = judged(make, "float16", steps=10)
    assert verdict.status == "refuse"
    assert "steps_skipped" in reasons(verdict)
    assert verdict.first.skipped_steps == 9
    assert judged(make, "bfloat16", steps=10).status == "accept"


def test_one_overflow_is_no_fault() -> None:
    make = classification(exploding, weight=lambda step: 1e9 if step == 3 else 1.0)
    verdict = judged(make, "float16", steps=10)
    assert verdict.status == "accept"
    assert [remark.code for remark in verdict.first.remarks] == ["some_steps_skipped"]
