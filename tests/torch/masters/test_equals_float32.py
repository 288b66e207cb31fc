# SPDX-License-Identifier: Apache-2.0
"""Modes `split` and `float32`: weights and optimizer states of float32 training, bit for bit, given its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.masters.training import SHAPES, GlobalNorm, Lion, SideBySide, parameters, same_bits
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from floatwise.torch.masters import MasterWeights, fused, split, step

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD, weight decay, maximize": lambda p: optim.SGD(p, 0.1, weight_decay=0.01, maximize=True),
    "SGD, momentum, dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "SGD, Nesterov, foreach": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD, fused": lambda p: optim.SGD(p, 0.1, fused=True),
    "SGD, fused, all": lambda p: optim.SGD(
        p, torch.tensor(0.1), momentum=0.9, weight_decay=0.01, nesterov=True, maximize=True, fused=True
    ),
    "Adam": lambda p: optim.Adam(p, 1e-3, weight_decay=0.01),
    "Adam, amsgrad, maximize": lambda p: optim.Adam(p, 1e-3, amsgrad=True, maximize=True),
    "Adam, foreach": lambda p: optim.Adam(p, 1e-3, foreach=True),
    "Adam, lr as tensor": lambda p: optim.Adam(p, torch.tensor(1e-3)),
    "Adam, fused": lambda p: optim.Adam(p, 1e-3, weight_decay=0.01, fused=True),
    "Adam, fused, all": lambda p: optim.Adam(p, torch.tensor(1e-3), amsgrad=True, maximize=True, fused=True),
    "AdamW": lambda p: optim.AdamW(p, 1e-3),
    "AdamW, foreach": lambda p: optim.AdamW(p, 1e-3, foreach=True, amsgrad=True),
    "AdamW, fused": lambda p: optim.AdamW(p, 1e-3, fused=True),
    "AdamW, fused, all": lambda p: optim.AdamW(p, 1e-3, amsgrad=True, maximize=True, fused=True),
    "Adafactor": lambda p: optim.Adafactor(p, 1e-2, weight_decay=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, 1e-3, momentum=0.9, centered=True, weight_decay=0.01),
    "Adagrad": lambda p: optim.Adagrad(p, 1e-2, initial_accumulator_value=0.1, lr_decay=0.01),
    "Adagrad, fused": lambda p: optim.Adagrad(p, 1e-2, fused=True),
    "NAdam": lambda p: optim.NAdam(p, decoupled_weight_decay=True, weight_decay=0.01),
    "RAdam": lambda p: optim.RAdam(p, 1e-2),
    "Adamax": lambda p: optim.Adamax(p, weight_decay=0.01),
    "Adadelta": lambda p: optim.Adadelta(p),
    "ASGD": lambda p: optim.ASGD(p, t0=2),
    "Rprop": lambda p: optim.Rprop(p),
    "Lion, a user's": lambda p: Lion(p),
    "global norm, a user's": lambda p: GlobalNorm(p),
}


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stretches a parameter and several parameters a stretch; several portions of whole parameters."""
    monkeypatch.setattr(fused, "_CPU_ELEMENTS", 64)
    monkeypatch.setattr(step, "_ELEMENTS_AT_A_TIME", 100)


@pytest.mark.parametrize("mode", ["split", "float32"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_states_are_those_of_float32_training(name: str, mode: str) -> None:
    shapes = [s for s in SHAPES if 0 not in s] if name == "Adafactor" else SHAPES  # it divides by their size
    training = SideBySide(OPTIMIZERS[name], mode, of=parameters(shapes))
    training.train(6)
    training.check()


@pytest.mark.parametrize("name", ["SGD, fused, all", "AdamW, fused", "AdamW", "global norm, a user's"])
def test_without_the_compiled_kernel_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "kernel_in_use", lambda: None)
    training = SideBySide(OPTIMIZERS[name])
    training.train()
    training.check()


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="PyTorch has it since 2.9")
def test_muon_too() -> None:
    training = SideBySide(lambda p: optim.Muon(p, 1e-2), of=parameters([(8, 12), (31, 5)]))
    training.train()
    training.check()


@pytest.mark.parametrize("name", ["SGD, fused, all", "Adam, fused", "AdamW", "Adafactor", "Lion, a user's"])
def test_every_optimizer_is_right_when_it_sees_all_weights_at_once(name: str) -> None:
    training = SideBySide(OPTIMIZERS[name], of=parameters([(5, 7), (33,), ()]), granularity="all")
    training.train()
    training.check()


@pytest.mark.parametrize("name", ["AdamW, fused", "Adam, fused, all", "SGD, fused, all"])
@pytest.mark.parametrize("size", [15, 16, 17, 63, 64, 65, 127, 128, 129, 1000])
def test_sizes_around_cache_lines_and_stretches(name: str, size: int) -> None:
    training = SideBySide(OPTIMIZERS[name], of=parameters([(size,), (3, size), (size, 1)]))
    training.train()
    training.check()


@pytest.mark.parametrize("name", ["SGD", "AdamW", "AdamW, fused", "RMSprop", "Lion, a user's"])
def test_groups_have_hyperparameters_of_their_own(name: str) -> None:
    def grouped(params: list[nn.Parameter]) -> Optimizer:
        return OPTIMIZERS[name](
            [{"params": params[:3], "lr": 0.01, "weight_decay": 0.5}, {"params": params[3:], "lr": 1e-3}]
        )

    training = SideBySide(grouped)
    training.train(2)
    for optimizer in (training.reference, training.optimizer):
        optimizer.param_groups[1]["lr"] = 0.05
    training.train(2)
    training.check()


@pytest.mark.parametrize("name", ["SGD, Nesterov, foreach", "AdamW", "AdamW, fused", "Adafactor", "Lion, a user's"])
def test_parameters_without_a_gradient_are_passed_over(name: str) -> None:
    training = SideBySide(OPTIMIZERS[name], of=parameters([(13, 17), (33,), (8, 3, 3, 3), (5, 7)]))
    training.train(2, without={0, 2})
    training.train(2, without={1})
    training.train(2)
    training.train(1, without=range(4))
    training.check()


@pytest.mark.parametrize("name", ["AdamW", "AdamW, fused", "Lion, a user's"])
def test_frozen_parameters_stay_and_train_once_they_are_unfrozen(name: str) -> None:
    of = parameters()
    before = of[0].detach().clone()
    of[0].requires_grad_(False)
    training = SideBySide(OPTIMIZERS[name], of=of)
    training.train(2, without={0})
    assert same_bits(training.optimizer.master(training.low[0]), before)
    for weights in (training.wide, training.low):
        weights[0].requires_grad_()
    training.train(2)
    training.check()


@pytest.mark.parametrize("name", ["AdamW", "AdamW, fused", "Lion, a user's"])
def test_a_group_that_is_added_later_gets_masters(name: str) -> None:
    training = SideBySide(OPTIMIZERS[name])
    training.train(2)
    more = parameters([(9, 9)])
    training.wide += more
    training.low += [nn.Parameter(p.detach().clone()) for p in more]
    training.reference.add_param_group({"params": [training.wide[-1]], "lr": 0.1})
    training.optimizer.add_param_group({"params": [training.low[-1]], "lr": 0.1})
    training.train(3)
    training.check()


def test_a_16_bit_weight_that_was_frozen_gets_a_master_when_it_has_a_gradient() -> None:
    frozen = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
    trained = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = MasterWeights(optim.SGD([frozen, trained], lr=2.0**-12))
    frozen.requires_grad_()
    for _ in range(2):
        frozen.grad = torch.ones_like(frozen)
        optimizer.step()
    assert optimizer.master(frozen).tolist() == [1 - 2.0**-11] * 3


@pytest.mark.parametrize("name", ["AdamW", "AdamW, fused", "Lion, a user's"])
def test_wrapped_after_steps_in_float32_training_goes_on(name: str) -> None:
    wide = parameters()
    low = [nn.Parameter(p.detach().clone()) for p in wide]
    reference, inner = OPTIMIZERS[name](list(wide)), OPTIMIZERS[name](list(low))
    for w, p in zip(wide, low, strict=True):
        w.grad = torch.empty_like(w).copy_(torch.randn(w.shape))
        p.grad = w.grad.clone()
    reference.step()
    inner.step()
    optimizer = MasterWeights(inner, dtype=torch.bfloat16)
    for w, p in zip(wide, low, strict=True):
        p.grad = torch.empty_like(p).copy_(torch.randn(p.shape))
        w.grad = p.grad.float()
    reference.step()
    optimizer.step()
    assert all(same_bits(optimizer.master(p), w) for w, p in zip(wide, low, strict=True))


def test_tied_weights_have_one_master() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 5)
            self.head = nn.Linear(5, 7, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    wide = nn.Parameter(model.head.weight.detach().clone())
    reference = optim.AdamW([wide])
    optimizer = MasterWeights(optim.AdamW(model.parameters()), dtype=torch.bfloat16, model=model)
    for _ in range(3):
        tokens = torch.tensor([1, 2, 2, 6])
        model.head(model.embedding(tokens)).square().sum().backward()
        assert model.head.weight.grad is not None
        wide.grad = model.head.weight.grad.float()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
    assert model.head.weight is model.embedding.weight
    assert same_bits(optimizer.master(model.head.weight), wide)


@pytest.mark.parametrize("granularity", [None, "all"])
@pytest.mark.parametrize("name", ["SGD, fused", "AdamW, fused", "SGD, momentum, dampening", "Adam"])
def test_gradients_in_another_layout_than_the_weight(name: str, granularity: Any) -> None:
    # PyTorch's fused kernels pass over strides (2.13), so the reference has its gradients in the weights' layout.
    training = SideBySide(OPTIMIZERS[name], of=parameters([(4, 3, 2, 5), (6, 7)]), granularity=granularity)
    for _ in range(3):
        training.give_gradients()
        for low in training.low:
            assert low.grad is not None
            low.grad = low.grad.transpose(0, 1).contiguous().transpose(0, 1)
            assert low.grad.stride() != low.stride()
        training.reference.step()
        training.optimizer.step()
    training.check()


def sparse(rows: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows, values, (11, 3), check_invariants=True)


@pytest.mark.parametrize("coalesced", [True, False])
@pytest.mark.parametrize(
    "make",
    [lambda p: optim.SGD(p, 0.1), lambda p: optim.SparseAdam(p), lambda p: optim.Adagrad(p)],
    ids=["SGD", "SparseAdam", "Adagrad"],
)
def test_sparse_gradients_of_embeddings(make: Callable[[Any], Optimizer], coalesced: bool) -> None:
    training = SideBySide(make, of=parameters([(11, 3)]))
    for _ in range(4):
        rows = torch.randint(0, 11, (1, 6))
        low = sparse(rows, torch.randn(6, 3).bfloat16())
        training.low[0].grad = low = low.coalesce() if coalesced else low
        training.wide[0].grad = sparse(low._indices(), low._values().float())
        with torch.sparse.check_sparse_tensor_invariants():
            training.reference.step()
            training.optimizer.step()
    training.check()


def test_sparse_gradients_beside_dense_ones_with_a_fused_optimizer() -> None:
    """What PyTorch's fused kernels refuse is refused, in their words."""
    training = SideBySide(lambda p: optim.AdamW(p, fused=True), of=parameters([(11, 3), (4,)]))
    training.train(1)
    training.give_gradients()
    training.low[0].grad = sparse(torch.tensor([[1]]), torch.ones(1, 3).bfloat16())
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        training.optimizer.step()
