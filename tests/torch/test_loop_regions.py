# SPDX-License-Identifier: Apache-2.0
"""Casts of weights within a region: made once, never out of date, and with gradients, whatever ran before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from tests.torch.loop_parts import batches, loss_of, model, prepared, same, sgd, train_step, weights
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from floatwise.torch import Precision, autocast_region
from floatwise.torch.weight_cache import keeps_gradients

LOW = ["bf16-mixed", "fp16-mixed"]
NO_GRADIENTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    net.eval()
    yield
    net.train()


def casts_in(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return sum(event.count for event in profiler.key_averages() if event.key == "aten::_to_copy")


class TestEvaluation:
    @pytest.mark.parametrize("name", ["fp32", *LOW])
    @pytest.mark.parametrize("mode", NO_GRADIENTS)
    @pytest.mark.parametrize("where", ["same region", "own region", "outside"])
    def test_training_is_the_same_with_evaluations_before_each_step(self, where: str, mode: str, name: str) -> None:
        plain, net = model(), model()
        with prepared(plain, sgd(plain), name) as precision:
            for batch in batches(3):
                train_step(precision, plain, batch)
        with prepared(net, sgd(net), name) as precision:
            for batch in batches(3):
                if where != "same region":
                    with precision.forward() if where == "own region" else nullcontext():
                        with evaluating(net), NO_GRADIENTS[mode]():
                            loss_of(net, batch)
                with precision.forward():
                    if where == "same region":
                        with evaluating(net), NO_GRADIENTS[mode]():
                            loss_of(net, batch)
                    loss = loss_of(net, batch)
                precision.backward(loss)
                assert precision.step().stepped
                precision.zero_grad()
        assert same(weights(net), weights(plain))

    @pytest.mark.parametrize("mode", NO_GRADIENTS)
    def test_stock_casts_made_without_gradients_are_used_again(self, mode: str) -> None:
        linear, x = nn.Linear(4, 4), torch.ones(2, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with NO_GRADIENTS[mode]():
                linear(x)
            assert linear(x).requires_grad == keeps_gradients()

    def test_the_answer_is_the_same_from_any_mode(self) -> None:
        answers = set()
        for around in (nullcontext, torch.no_grad, torch.inference_mode):
            keeps_gradients.cache_clear()
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False), around():
                answers.add(keeps_gradients())
        assert len(answers) == 1

    def test_where_they_are_not_to_be_relied_on_there_is_no_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[autocast_region.__module__], "keeps_gradients", lambda: False)
        net = model()
        with prepared(net, sgd(net), "bf16-mixed") as precision:
            with precision.forward():
                assert not torch.is_autocast_cache_enabled()
            assert torch.is_autocast_cache_enabled()
            assert train_step(precision, net, batches(1)[0])


class TestCasts:
    @pytest.mark.parametrize("name", LOW)
    def test_a_weight_is_cast_once_in_a_forward(self, name: str) -> None:
        linear = nn.Linear(4, 4, bias=False)
        x = torch.ones(2, 4, dtype=torch.bfloat16 if name == "bf16-mixed" else torch.float16)
        with prepared(linear, sgd(linear), name) as precision:

            def run(times: int) -> Callable[[], Tensor]:
                def forward() -> Tensor:
                    with precision.forward():
                        return torch.stack([linear(x) for _ in range(times)])

                return forward

            run(1)()
            if keeps_gradients():
                assert casts_in(run(3)) == casts_in(run(1))

    @pytest.mark.parametrize("name", LOW)
    def test_one_region_over_all_steps_trains_as_one_for_each(self, name: str) -> None:
        each, whole = model(), model()
        with prepared(each, sgd(each), name) as precision:
            for batch in batches(3):
                train_step(precision, each, batch)
        with prepared(whole, sgd(whole), name) as precision, precision.forward():
            for batch in batches(3):
                precision.backward(loss_of(whole, batch))
                assert precision.step().stepped
                precision.zero_grad()
        assert same(weights(whole), weights(each))

    def test_stock_one_region_over_all_steps_computes_with_the_first_weights(self) -> None:
        linear, x = nn.Linear(4, 4), torch.ones(2, 4)
        optimizer = sgd(linear)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = linear(x)
            first.float().sum().backward()
            optimizer.step()
            assert torch.equal(linear(x), first)

    def test_weights_changed_between_regions_count(self) -> None:
        linear, x = nn.Linear(4, 4), torch.ones(2, 4)
        with prepared(linear, sgd(linear), "bf16-mixed") as precision:
            assert not torch.equal(_output(precision, linear, x), _after_zeroing(precision, linear, x))


def _output(precision: Precision, linear: nn.Linear, x: Tensor) -> Tensor:
    with precision.forward(), torch.no_grad():
        output: Tensor = linear(x)
    return output


def _after_zeroing(precision: Precision, linear: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        linear.weight.zero_()
    return _output(precision, linear, x)
