# SPDX-License-Identifier: Apache-2.0
"""16-bit weights for training code that knows nothing of them."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from floatwise.plan import ModulePolicy, Plan, Policy, recipe
from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision
from floatwise.torch import MasterWeights, prepare
from floatwise.torch.masters import float32_value
from floatwise.torch.script.applied import AppliedPlan

SPLIT = recipe("bf16-master")


class SignDescent(Optimizer):
    """An optimizer of somebody's own, which may look at all parameters at once."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "calls": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["calls"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class OfItsBase(AdamW):
    """An optimizer that calls the step of its base class, which PyTorch hooks by itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return super().step(closure)


MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: AdamW(p, 1e-2),
    "fused AdamW": lambda p: AdamW(p, 1e-2, fused=True),
    "one's own": lambda p: SignDescent(p),
    "of its base": lambda p: OfItsBase(p, 1e-2),
}


@contextmanager
def under(plan: Plan) -> Iterator[AppliedPlan]:
    applied = AppliedPlan(plan)
    with Tap([applied]) as tap:
        existing = ExistingPrecision(tap, compute_dtype=applied.compute_dtype)
        existing.install()
        applied.install(tap, existing)
        yield applied


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 32, generator=generator), torch.randint(0, 8, (16,), generator=generator))
        for _ in range(count)
    ]


def train(model: nn.Module, optimizer: Optimizer, steps: int = 6) -> None:
    for inputs, labels in batches(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def by_prepare(make: Callable[[Any], Optimizer], steps: int = 6) -> dict[str, Tensor]:
    """Returns the weights that the same loop gives when it is written with `prepare`."""
    model = make_model()
    optimizer = make(model.parameters())
    precision = prepare(model, optimizer, SPLIT)
    for inputs, labels in batches(steps):
        with precision.forward():
            outputs = model(inputs)
        precision.backward(F.cross_entropy(outputs.float(), labels))
        precision.step()
        precision.zero_grad()
    precision.close()
    return model.state_dict()


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype is right[name].dtype is torch.float32
        assert torch.equal(value, right[name]), name


EXPECTED = {name: by_prepare(make) for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_weights_are_those_of_a_loop_written_with_prepare(name: str) -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = MAKERS[name](model.parameters())
        train(model, optimizer)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert_same(model.state_dict(), EXPECTED[name])
    assert optimizer.param_groups[0].get("calls", 6) == 6  # its step ran once a step, whatever it counts


def test_gradients_are_there_after_the_step_and_states_are_float32() -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = AdamW(model.parameters(), fused=True)
        train(model, optimizer, steps=2)
        assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        states = [v for s in optimizer.state_dict()["state"].values() for k, v in s.items() if k != "step"]
        assert {v.dtype for v in states} == {torch.float32}


def test_an_optimizer_made_after_the_first_forward_counts_too() -> None:
    with under(SPLIT):
        model = make_model()
        with torch.no_grad():
            model(batches(1)[0][0])
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        train(model, AdamW(model.parameters(), 1e-2))
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert_same(model.state_dict(), EXPECTED["AdamW"])


def test_a_closure_that_runs_the_model_for_the_first_time_ends_on_master_weights() -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = AdamW(model.parameters(), 1e-2)
        for inputs, labels in batches(6):

            def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> float:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss.item()

            assert isinstance(optimizer.step(closure), float)
        assert_same(model.state_dict(), EXPECTED["AdamW"])


def test_lbfgs_ends_its_first_step_on_float32_weights_and_goes_on_with_masters() -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=4)
        inputs, labels = batches(1)[0]

        def closure() -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss.item()

        first = optimizer.step(closure)
        for _ in range(4):
            last = optimizer.step(closure)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert last < 0.2 * first


def test_averages_that_a_script_keeps_do_not_stall() -> None:
    decay = 0.999
    with under(SPLIT):
        model = make_model()
        own = copy.deepcopy(model).requires_grad_(False)
        swa = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        optimizer = AdamW(model.parameters(), 1e-3)
        for inputs, labels in batches(5):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for average, weight in zip(own.parameters(), model.parameters(), strict=True):
                    average.mul_(decay).add_(weight, alpha=1 - decay)
            swa.update_parameters(model)
            own(inputs)  # evaluating a copy does not store it in 16 bits
        assert {p.dtype for p in (*own.parameters(), *swa.parameters())} == {torch.float32}
        start = make_model().state_dict()
        for name, average in swa.module.state_dict().items():
            moved = (average - start[name]).norm()
            assert 0 < moved < (model.state_dict()[name] - start[name]).norm()


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    with under(SPLIT):
        weight = nn.Linear(4, 1, bias=False)
        optimizer = SGD(weight.parameters(), 1.0)
        weight(torch.ones(1, 4)).sum().backward()
        optimizer.step()  # the first forward stores it
        optimizer.zero_grad()
        for _ in range(600):
            weight(torch.ones(1, 4)).sum().backward()
        assert weight.weight.grad is not None
        assert weight.weight.grad.tolist() == [[600.0] * 4]  # bfloat16 stops at 256


def test_what_masters_a_script_has_itself_are_left_to_it() -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = MasterWeights(AdamW(model.parameters(), 1e-2), dtype=torch.bfloat16, model=model)
        train(model, optimizer)
        assert_same(model.state_dict(), EXPECTED["AdamW"])


def test_islands_keep_float32_weights() -> None:
    float32 = Policy(param_dtype="float32", compute_dtype="float32", output_dtype="float32")
    with under(recipe("bf16-master", modules=(ModulePolicy(module="3", policy=float32),))):
        model = make_model()
        train(model, Adam(model.parameters()), steps=2)
        assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * 4 + [torch.float32] * 2
        head = model.get_parameter("3.weight")
        assert torch.equal(float32_value(head), head)


def test_a_script_that_refuses_non_finite_norms_goes_on() -> None:
    with under(recipe("fp16-mixed")):
        model = make_model()
        optimizer = SGD(model.parameters(), 0.1)
        for scale in (1e30, 1.0):
            optimizer.zero_grad()
            (F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]) * scale).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
        assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", ["AdamW", "one's own"])
def test_hooks_of_a_script_see_gradients_before_and_after_the_step(name: str) -> None:
    seen: list[bool] = []

    def halve(optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.0)

    def look(optimizer: Optimizer, *_: Any) -> None:
        seen.append(all(p.grad is not None for group in optimizer.param_groups for p in group["params"]))

    with under(SPLIT):
        model = make_model()
        optimizer = MAKERS[name](model.parameters())
        optimizer.register_step_pre_hook(halve)
        optimizer.register_step_post_hook(look)
        train(model, optimizer, steps=1)
        before = model.state_dict()
        if name == "AdamW":
            optimizer.param_groups[0]["weight_decay"] = 0.0
            train(model, optimizer, steps=3)
            assert_same(model.state_dict(), before)  # gradients of zero move nothing
    assert all(seen)


def test_models_that_nobody_trains_any_more_are_let_go() -> None:
    alive = []
    with under(SPLIT):
        for _ in range(3):
            model = make_model()
            train(model, AdamW(model.parameters(), fused=True), steps=2)
            alive.append(weakref.ref(model))
            del model
            gc.collect()
        # The last may still be in the events of its last pass.
        assert [reference() is None for reference in alive[:-1]] == [True, True]


def test_a_script_may_give_float32_gradients_to_16_bit_weights() -> None:
    with under(SPLIT):
        model = make_model()
        optimizer = SGD(model.parameters(), 0.1)
        train(model, optimizer, steps=1)
        optimizer.zero_grad()
        F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
        before = model.state_dict()
        optimizer.step()
        assert_same(model.state_dict(), before)
