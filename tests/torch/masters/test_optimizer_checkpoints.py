# SPDX-License-Identifier: Apache-2.0
"""State dicts of `MasterWeights` and of the optimizer in it: float32 states, exact resume, to plain ones and back."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tests.torch.masters.training import Lion, same_bits, same_states
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from floatwise.torch.masters import MasterWeights

MODES = ["split", "float32", "kahan", "stochastic"]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.01),
    "SGD, momentum": lambda p: optim.SGD(p, 0.01, momentum=0.9, fused=True),
    "AdamW": lambda p: optim.AdamW(p, 1e-3),
    "AdamW, fused": lambda p: optim.AdamW(p, 1e-3, fused=True),
    "Adafactor": lambda p: optim.Adafactor(p, 1e-2),
    "Adagrad": lambda p: optim.Adagrad(p, 1e-2, initial_accumulator_value=0.1),
    "Lion": lambda p: Lion(p),
}


class Run:
    """A model in bfloat16 with masters, or in float32 without, and its optimizer.

    Args:
      make: Makes the optimizer.
      mode: Of the masters; None for float32 without.
      with_model: Whether `MasterWeights` is given the model.
    """

    def __init__(
        self, make: Callable[[Any], Optimizer], mode: str | None, with_model: bool = True, seed: int = 0
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
        self.model[1].bias.requires_grad_(False)
        self.inner = make(self.model.parameters())
        self.optimizer = self.inner
        if mode is not None:
            model = self.model if with_model else None
            self.optimizer = MasterWeights(self.inner, mode, dtype=torch.bfloat16, model=model)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for index, parameter in enumerate(self.model.parameters()):
                grad = torch.randn(parameter.shape, generator=generator).bfloat16()
                if parameter.requires_grad and not (index == 0 and step == 0):
                    parameter.grad = grad.to(parameter.dtype)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        if isinstance(self.optimizer, MasterWeights):
            return [self.optimizer.master(p) for p in self.model.parameters()]
        return [p.detach().clone() for p in self.model.parameters()]

    def states(self) -> list[Any]:
        return [self.optimizer.state.get(p, {}) for p in self.model.parameters()]

    def saved(self, of_inner: bool = False) -> Any:
        """Returns the states of model and optimizer, as they come back from a file."""
        file = io.BytesIO()
        optimizer = self.inner if of_inner else self.optimizer
        torch.save((self.model.state_dict(), optimizer.state_dict()), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def load(self, saved: Any, into_inner: bool = False) -> None:
        self.model.load_state_dict(saved[0])
        (self.inner if into_inner else self.optimizer).load_state_dict(saved[1])


def same(one: Run, other: Run) -> bool:
    return all(map(same_bits, one.weights(), other.weights())) and same_states(one.states(), other.states())


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_is_the_unbroken_one(name: str, mode: str, with_model: bool) -> None:
    unbroken = Run(OPTIMIZERS[name], mode, with_model)
    unbroken.train(0, 3)
    saved = unbroken.saved()
    unbroken.train(3, 6)
    resumed = Run(OPTIMIZERS[name], mode, with_model, seed=1)
    resumed.load(saved)
    resumed.train(3, 6)
    assert same(unbroken, resumed)


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum", "Adagrad"])
def test_from_the_start_too(name: str) -> None:
    unbroken = Run(OPTIMIZERS[name], "split", with_model=False)
    saved = unbroken.saved()
    unbroken.train(0, 3)
    resumed = Run(OPTIMIZERS[name], "split", with_model=False, seed=1)
    resumed.load(saved)
    resumed.train(0, 3)
    assert same(unbroken, resumed)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_inner_optimizers_state_dict_is_the_same(name: str) -> None:
    unbroken = Run(OPTIMIZERS[name], "split")
    unbroken.train(0, 3)
    assert same_states(unbroken.inner.state_dict(), unbroken.optimizer.state_dict())
    saved = unbroken.saved(of_inner=True)
    unbroken.train(3, 5)
    resumed = Run(OPTIMIZERS[name], "split", seed=1)
    resumed.load(saved, into_inner=True)
    resumed.train(3, 5)
    assert same(unbroken, resumed)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_to_float32_training_and_back(name: str) -> None:
    low = Run(OPTIMIZERS[name], "split")
    low.train(0, 2)
    wide = Run(OPTIMIZERS[name], None, seed=1)
    wide.load(low.saved())
    assert same_states(wide.states(), low.states())
    for run in (low, wide):
        run.train(2, 4)
    assert same(low, wide)
    again = Run(OPTIMIZERS[name], "split", seed=2)
    again.load(wide.saved())
    for run in (again, wide):
        run.train(4, 6)
    assert same(again, wide)


def test_the_state_dict_without_the_model_does_no_harm_to_a_plain_optimizer() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split", with_model=False)
    low.train(0, 1)  # one parameter has had no gradient, and has no state
    wide = Run(OPTIMIZERS["AdamW"], None)
    wide.load(low.saved())
    wide.train(1, 3)
    assert all("master" not in key for state in wide.states() for key in state)


def test_states_are_float32_and_there_is_no_more_than_needed() -> None:
    low, wide = (Run(OPTIMIZERS["AdamW"], mode) for mode in ("split", None))
    for run in (low, wide):
        run.train(0, 2)
    mine, plain = low.optimizer.state_dict(), wide.optimizer.state_dict()
    assert mine.pop("master_weights") == {}
    assert same_states(mine, plain)


def test_without_the_model_the_weights_are_in_the_optimizers_state_dict() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split", with_model=False)
    low.train(0, 2)
    values = low.optimizer.state_dict()["master_weights"]
    assert all(map(same_bits, values.values(), low.weights()))
    assert sorted(values) == list(range(6))


def test_states_of_16_bit_training_are_raised() -> None:
    torch.manual_seed(0)
    stock = nn.Linear(4, 3).bfloat16()
    plain = optim.AdamW(stock.parameters())
    stock(torch.randn(2, 4).bfloat16()).sum().backward()
    plain.step()
    assert plain.state[stock.weight]["exp_avg"].dtype is torch.bfloat16
    model = nn.Linear(4, 3)
    optimizer = MasterWeights(optim.AdamW(model.parameters()), dtype=torch.bfloat16, model=model)
    model.load_state_dict(stock.state_dict())
    optimizer.load_state_dict(deepcopy(plain.state_dict()))
    assert optimizer.state[model.weight]["exp_avg"].dtype is torch.float32
    wrapped = MasterWeights(plain)
    assert wrapped.state[stock.weight]["exp_avg_sq"].dtype is torch.float32
    for o, m in ((optimizer, model), (wrapped, stock)):
        m.weight.grad = torch.ones_like(m.weight)
        m.bias.grad = torch.ones_like(m.bias)
        o.step()
    assert same_bits(optimizer.master(model.weight), wrapped.master(stock.weight))


def test_states_that_a_users_optimizer_keeps_in_16_bits_stay_so() -> None:
    class Frugal(Lion):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("momentum", torch.zeros_like(p, dtype=torch.bfloat16))
            return super().step(closure)

    runs = [Run(lambda p: Frugal(p), "split", seed=seed) for seed in (0, 1)]
    runs[0].train(0, 2)
    runs[1].load(runs[0].saved())
    assert runs[1].states()[0]["momentum"].dtype is torch.bfloat16
    for run in runs:
        run.train(2, 4)
    assert same(*runs)


def test_states_in_lists_keep_float32() -> None:
    def made() -> tuple[nn.Parameter, MasterWeights]:
        weight = nn.Parameter(torch.linspace(-2, 2, 7))
        return weight, MasterWeights(optim.LBFGS([weight], lr=0.1, max_iter=2, history_size=3), dtype=torch.bfloat16)

    def train(weight: nn.Parameter, optimizer: MasterWeights, steps: int) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (weight.float() * torch.arange(7)).square().sum()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)

    weight, optimizer = made()
    train(weight, optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    train(weight, optimizer, 3)
    other, second = made()
    second.load_state_dict(torch.load(file, weights_only=True))
    train(other, second, 3)
    assert same_bits(optimizer.master(weight), second.master(other))
    assert second.state[other]["old_dirs"][0].dtype is torch.float32


def test_the_loaded_states_are_not_those_in_the_dictionary() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split")
    low.train(0, 2)
    saved = low.saved()
    resumed = Run(OPTIMIZERS["AdamW"], "split")
    resumed.load(saved)
    before = saved[1]["state"][0]["exp_avg"].clone()
    resumed.train(2, 4)
    assert torch.equal(saved[1]["state"][0]["exp_avg"], before)


def test_a_state_without_the_exact_weights_is_loaded_with_a_warning() -> None:
    with_model = Run(OPTIMIZERS["AdamW"], "split")
    with_model.train(0, 1)
    without = Run(OPTIMIZERS["AdamW"], "split", with_model=False)
    with pytest.warns(UserWarning, match="no float32 values of the weights"):
        without.optimizer.load_state_dict(with_model.optimizer.state_dict())


def test_after_close_the_optimizers_state_dict_has_the_weights() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split")
    low.train(0, 1)
    exact = low.weights()
    assert isinstance(low.optimizer, MasterWeights)
    low.optimizer.close()
    assert low.model.state_dict()["0.weight"].dtype is torch.bfloat16
    assert "master_weights" not in low.optimizer.state_dict()
    again = MasterWeights(low.inner)
    assert all(map(same_bits, again.state_dict()["master_weights"].values(), exact))


def test_hooks_of_state_dicts_run_for_either() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split")
    calls: list[str] = []
    for optimizer in (low.inner, low.optimizer):
        optimizer.register_state_dict_pre_hook(lambda _: calls.append("saving"))
        optimizer.register_state_dict_post_hook(lambda _, state: calls.append("saved"))
        optimizer.register_load_state_dict_pre_hook(lambda _, state: calls.append("loading"))
        optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    for optimizer in (low.inner, low.optimizer):
        optimizer.load_state_dict(optimizer.state_dict())
        assert calls == ["saving", "saving", "saved", "saved", "loading", "loading", "loaded", "loaded"]
        calls.clear()


def test_a_failed_load_changes_nothing() -> None:
    low = Run(OPTIMIZERS["AdamW"], "split")
    low.train(0, 1)
    weights = low.weights()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        low.optimizer.load_state_dict({"state": {}, "param_groups": []})
    assert all(map(same_bits, low.weights(), weights))
