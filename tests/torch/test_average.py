# SPDX-License-Identifier: Apache-2.0
"""The moving average of the weights: float32, exact, and of real steps only."""

from __future__ import annotations

import io
from collections.abc import Callable
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
    sgd,
    train_step,
    weights,
)
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from floatwise.errors import BadInputError
from floatwise.plan import Plan, Weights, recipe
from floatwise.torch.average import WeightAverage
from floatwise.torch.masters import float32_value


def stored_as(master: Any) -> Plan:
    name = "fp16-master" if master == "float32" else "bf16-master"
    return recipe(name, weights=Weights(master=master))


PLANS: dict[str, Plan] = {
    "fp32": recipe("fp32"),
    "bf16-mixed": recipe("bf16-mixed"),
    "bf16-master split": stored_as("split"),
    "bf16-master kahan": stored_as("kahan"),
    "bf16-master stochastic": stored_as("stochastic"),
}
if hasattr(Tensor, "grad_dtype"):
    PLANS["fp16-master float32"] = stored_as("float32")


def exact(net: nn.Module) -> list[Tensor]:
    return [float32_value(p) for p in net.parameters()]


def averages(average: WeightAverage) -> list[Tensor]:
    return list(average.state_dict()["averages"].values())


class TestValues:
    @pytest.mark.parametrize("decay", [0.0, 0.9, 0.9999])
    def test_float32_is_torchs_average_bit_for_bit(self, decay: float) -> None:
        net = model()
        theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay))
        theirs.update_parameters(net)  # takes the weights as they are
        average = WeightAverage(net, decay)
        with prepared(net, OPTIMIZERS["AdamW"](net), "fp32") as precision:
            for batch in batches(4):
                train_step(precision, net, batch)
                theirs.update_parameters(net)
                average.update()
        assert same(averages(average), weights(theirs))
        assert average.updates == 4

    @pytest.mark.parametrize("name", PLANS)
    def test_it_averages_the_exact_values_in_float32(self, name: str) -> None:
        net = model()
        with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
            average = WeightAverage(net, 0.9)
            expected = exact(net)
            for batch in batches(3):
                train_step(precision, net, batch)
                average.update()
                expected = [e.lerp(value, 1.0 - 0.9) for e, value in zip(expected, exact(net), strict=True)]
            assert same(averages(average), expected)
            assert {a.dtype for a in averages(average)} == {torch.float32}

    def test_stock_an_average_in_bfloat16_never_moves(self) -> None:
        net = nn.Linear(8, 8, dtype=torch.bfloat16)
        nn.init.ones_(net.weight)
        theirs = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
        theirs.update_parameters(net)
        ours = WeightAverage(net, 0.9999)
        nn.init.constant_(net.weight, 2.0)
        for _ in range(2000):
            theirs.update_parameters(net)
            ours.update()
        stalled: Any = theirs.module
        assert (stalled.weight == 1.0).all()
        due = 2.0 - 0.9999**2000  # 1.18
        assert averages(ours)[0].mean().item() == pytest.approx(due, abs=1e-3)

    def test_warmup_forgets_the_first_weights(self) -> None:
        net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(net.weight)
        average = WeightAverage(net, 0.5, warmup=True)
        nn.init.ones_(net.weight)
        expected = 0.0
        for decay in (1 / 10, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 6 / 15, 7 / 16, 8 / 17, 0.5, 0.5):
            average.update()
            expected = expected * decay + 1 - decay
            assert averages(average)[0].item() == pytest.approx(expected, rel=1e-6)

    def test_float64_stays(self) -> None:
        net = nn.Linear(2, 2).double()
        average = WeightAverage(net)
        before = weights(net)
        with average.applied():
            pass
        assert {a.dtype for a in averages(average)} == {torch.float64}
        assert same(weights(net), before)


class TestUpdate:
    def test_a_skipped_step_is_passed_over(self) -> None:
        net = model()
        with prepared(net, sgd(net), scaled()) as precision:
            average = WeightAverage(net)
            before = [a.clone() for a in averages(average)]
            precision.backward(overflowing(net))
            average.update(precision.step())
            precision.zero_grad()
            average.update(precision.step())  # no gradients
            assert average.updates == 0
            assert same(averages(average), before)
            precision.backward(loss_of(net, batches(1)[0]))
            average.update(precision.step())
            assert average.updates == 1
            assert not same(averages(average), before)

    def test_frozen_weights_join_when_they_are_trained(self) -> None:
        net = model()
        net[0].requires_grad_(False)
        average = WeightAverage(net, 0.5)
        assert list(average.state_dict()["averages"]) == ["2.weight", "2.bias"]
        net[0].requires_grad_(True)
        average.update()
        nn.init.zeros_(net.get_parameter("0.weight"))
        net[0].requires_grad_(False)  # and stay when they are frozen again
        average.update()
        with average.applied():
            assert torch.equal(net.get_parameter("0.weight"), model().get_parameter("0.weight") / 2)

    @pytest.mark.parametrize("averaged", [False, True])
    def test_buffers(self, averaged: bool) -> None:
        net = nn.BatchNorm1d(2)
        average = WeightAverage(net, 0.5, average_buffers=averaged)
        net(torch.full((4, 2), 10.0))
        average.update()
        mean = 0.5 if averaged else 1.0
        with average.applied():
            assert net.running_mean is not None
            assert net.running_mean.tolist() == [mean, mean]
        assert net.running_mean.tolist() == [1.0, 1.0]
        state = average.model_state_dict()
        assert state["running_mean"].tolist() == [mean, mean]
        assert state["num_batches_tracked"].item() == 1


class TestApplied:
    @pytest.mark.parametrize("name", PLANS)
    def test_evaluating_in_between_changes_no_bit_of_training(self, name: str) -> None:
        results = []
        for evaluates in (False, True):
            net = model()
            with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
                average = WeightAverage(net, 0.9)
                for batch in batches(4):
                    train_step(precision, net, batch)
                    average.update()
                    if evaluates:
                        with average.applied(), torch.inference_mode(), precision.forward():
                            loss_of(net, batch)
                results.append([*exact(net), *averages(average)])
        assert same(*results)

    @pytest.mark.parametrize("name", PLANS)
    def test_the_model_has_the_average_within_and_its_own_after_an_exception(self, name: str) -> None:
        net = model()
        with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
            average = WeightAverage(net, 0.5)
            train_step(precision, net, batches(1)[0])
            average.update()
            own = [*exact(net), *weights(net)]
            with average.applied():
                if "stochastic" not in name and "kahan" not in name:
                    assert same(exact(net), averages(average))
                for weight, value in zip(exact(net), averages(average), strict=True):
                    torch.testing.assert_close(weight, value, rtol=2.0**-7, atol=0.0)
            assert same([*exact(net), *weights(net)], own)
            with pytest.raises(KeyError), average.applied():
                raise KeyError
            assert same([*exact(net), *weights(net)], own)

    def test_a_region_around_it_computes_with_the_average(self) -> None:
        net, x = nn.Linear(4, 4), torch.ones(1, 4)
        with prepared(net, sgd(net), "bf16-mixed") as precision:
            average = WeightAverage(net)
            nn.init.zeros_(net.weight)
            nn.init.zeros_(net.bias)
            with precision.forward():
                assert (net(x) == 0).all()
                with average.applied():
                    assert (net(x) != 0).all()
                assert (net(x) == 0).all()

    @pytest.mark.parametrize(
        "call",
        [
            lambda average: average.update(),
            lambda average: average.model_state_dict(),
            lambda average: average.load_state_dict(average.state_dict()),
            lambda average: average.applied().__enter__(),
        ],
    )
    def test_nothing_else_is_done_within(self, call: Callable[[WeightAverage], Any]) -> None:
        average = WeightAverage(model())
        with average.applied(), pytest.raises(BadInputError, match="leave it first"):
            call(average)
        call(average)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("not_kept", torch.ones(2), persistent=False)


class TestStates:
    @pytest.mark.parametrize("name", PLANS)
    def test_a_plain_model_loads_the_average(self, name: str) -> None:
        net, plain = model(), model()
        with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
            average = WeightAverage(net, 0.5)
            train_step(precision, net, batches(1)[0])
            average.update()
            plain.load_state_dict(average.model_state_dict())
            assert same(weights(plain), averages(average))

    def test_tied_weights_have_both_names(self) -> None:
        average = WeightAverage(Tied())
        assert list(average.state_dict()["averages"]) == ["embedding.weight"]
        fresh = Tied()
        fresh.load_state_dict(average.model_state_dict())
        assert fresh.head.weight is fresh.embedding.weight
        assert torch.equal(fresh.head.weight, averages(average)[0])

    @pytest.mark.parametrize("name", PLANS)
    def test_a_resumed_average_goes_on_bit_for_bit(self, name: str) -> None:
        net = model()
        with prepared(net, OPTIMIZERS["AdamW"](net), PLANS[name]) as precision:
            average = WeightAverage(net, 0.9, warmup=True)
            train_step(precision, net, batches(1)[0])
            average.update()
            file = io.BytesIO()
            torch.save(average.state_dict(), file)
            file.seek(0)
            resumed = WeightAverage(net, 0.5, warmup=True)
            resumed.load_state_dict(torch.load(file))
            train_step(precision, net, batches(2)[1])
            average.update()
            resumed.update()
        assert same(averages(resumed), averages(average))
        assert (resumed.decay, resumed.updates) == (0.9, 2)

    def test_names_are_those_without_wrappers(self) -> None:
        net = model()
        compiled: Any = torch.compile(net, backend="eager")
        assert list(WeightAverage(compiled).state_dict()["averages"]) == [n for n, _ in net.named_parameters()]

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({}, "expected what WeightAverage.state_dict returned"),
            (WeightAverage(nn.Linear(2, 2)).state_dict(), "'bias', which the model has not"),
            ({"decay": 0.9, "updates": 1, "averages": {}}, r"no '0\.bias'"),
        ],
    )
    def test_a_state_of_something_else_is_refused(self, state: dict[str, Any], message: str) -> None:
        with pytest.raises(BadInputError, match=message):
            WeightAverage(model()).load_state_dict(state)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_is_none(decay: float) -> None:
    with pytest.raises(BadInputError, match="expected a number from 0"):
        WeightAverage(model(), decay)


def test_a_model_without_trainable_weights_is_refused() -> None:
    with pytest.raises(BadInputError, match="GELU, a model without trainable weights"):
        WeightAverage(nn.GELU())
