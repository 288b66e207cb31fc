# SPDX-License-Identifier: Apache-2.0
"""`MasterWeights` in a training loop: schedulers, hooks, scalers, memory, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.torch.masters.training import Lion, Sam, same_bits
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from floatwise.torch import LossScaler
from floatwise.torch.masters import MasterWeights, fused, gradients, step, stored_of


def wrapped(mode: str = "split", dtype: torch.dtype = torch.bfloat16) -> tuple[nn.Linear, Optimizer, MasterWeights]:
    model = nn.Linear(4, 3)
    inner = optim.AdamW(model.parameters(), lr=0.1)
    return model, inner, MasterWeights(inner, mode, dtype=dtype)


def give_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


def test_it_is_an_optimizer_and_shows_what_it_wraps() -> None:
    model, inner, optimizer = wrapped()
    assert isinstance(optimizer, Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    assert optimizer.inner is inner
    assert repr(optimizer).startswith("MasterWeights(AdamW (")
    assert not hasattr(optimizer, "nothing_of_the_kind")
    optimizer.param_groups = list(optimizer.param_groups)
    assert optimizer.param_groups is inner.param_groups
    give_gradients(model)
    optimizer.zero_grad(set_to_none=False)
    assert model.weight.grad is not None
    optimizer.zero_grad()
    assert model.weight.grad is None


SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "StepLR": lambda o: StepLR(o, 1, gamma=0.5),
    "LambdaLR": lambda o: LambdaLR(o, lambda epoch: 0.5**epoch),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=0.1, total_steps=5),
}


@pytest.mark.parametrize("of_inner", [True, False])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_either_optimizer_set_the_rate_without_a_warning(name: str, of_inner: bool) -> None:
    model, inner, optimizer = wrapped()
    plain = nn.Linear(4, 3)
    reference = optim.AdamW(plain.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](inner if of_inner else optimizer)
    wanted = SCHEDULERS[name](reference)
    for _ in range(3):
        give_gradients(model)
        give_gradients(plain)
        optimizer.step()
        reference.step()
        scheduler.step()  # would warn, were `step` not called or overridden
        wanted.step()
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
        assert optimizer.param_groups[0].get("betas") == reference.param_groups[0].get("betas")


def note(calls: list[str], what: str, *_: Any) -> None:
    calls.append(what)


def test_hooks_of_either_optimizer_run_once_a_step() -> None:
    model, inner, optimizer = wrapped()
    calls: list[str] = []
    for name, registered in (("inner", inner), ("outer", optimizer)):
        registered.register_step_pre_hook(partial(note, calls, name + " before"))
        registered.register_step_post_hook(partial(note, calls, name + " after"))
    give_gradients(model)
    optimizer.step()
    assert sorted(calls) == ["inner after", "inner before", "outer after", "outer before"]
    calls.clear()
    inner.step()
    assert calls == ["inner before", "inner after"]


def test_a_hook_may_change_the_gradients_and_the_closure() -> None:
    model, inner, optimizer = wrapped()
    before = optimizer.master(model.weight)

    def drop(o: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for parameter in model.parameters():
            parameter.grad = None
        return (args[0], lambda: torch.tensor(2.0)), kwargs

    inner.register_step_pre_hook(drop)
    give_gradients(model)
    assert optimizer.step(lambda: torch.tensor(1.0)).item() == 2.0
    assert torch.equal(optimizer.master(model.weight), before)


@pytest.mark.parametrize("make", [optim.AdamW, Lion])
def test_global_hooks_see_one_step(make: Callable[[Any], Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = MasterWeights(make([weight]), dtype=torch.bfloat16)
    seen: list[Optimizer] = []
    handle = register_optimizer_step_pre_hook(lambda o, *_: seen.append(o))
    try:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    finally:
        handle.remove()
    assert seen == [optimizer]


def test_own_methods_of_an_optimizer_see_float32() -> None:
    class Switching(Lion):
        mode = "train"

        @torch.no_grad()
        def eval(self, factor: float = 1.5) -> str:
            self.mode = "eval"
            for group in self.param_groups:
                for p in group["params"]:
                    assert p.dtype is torch.float32
                    p.mul_(factor)
            return "done"

    weight = nn.Parameter(torch.tensor([0.3]))
    optimizer = MasterWeights(Switching([weight]), dtype=torch.bfloat16)
    assert optimizer.eval(factor=0.7) == "done"
    assert same_bits(optimizer.master(weight), torch.tensor([0.3]) * 0.7)
    assert optimizer.mode == "split"  # its own; the inner one's is at `inner`
    assert getattr(optimizer.inner, "mode") == "eval"  # noqa: B009


# -- loss scaling ------------------------------------------------------------------------------------------------------


def fp16_training() -> tuple[nn.Parameter, MasterWeights]:
    weight = nn.Parameter(torch.ones(2))
    return weight, MasterWeights(optim.SGD([weight], lr=2.0**20), "float32", dtype=torch.float16)


SMALL = 2.0**-30  # no float16 is smaller than 2**-24


def test_small_gradients_of_float16_weights_survive_loss_scaler() -> None:
    weight, optimizer = fp16_training()
    scaler = LossScaler("cpu", init_scale=2.0**16)
    for _ in range(2):
        weight.grad = torch.full_like(weight, SMALL * scaler.get_scale())
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        assert weight.grad.dtype is torch.float32
        assert weight.grad.tolist() == [SMALL] * 2
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert optimizer.master(weight).tolist() == [1 - 2 * SMALL * 2.0**20] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [lambda p: optim.AdamW(p, fused=True), lambda p: optim.SGD(p, 1.0), lambda p: Lion(p)])
def test_loss_scaler_skips_what_is_not_finite(make: Callable[[Any], Optimizer], dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = MasterWeights(make([weight]), "float32", dtype=dtype)
    scaler = LossScaler("cpu", init_scale=8.0)
    for gradient in (1.0, float("inf"), 1.0):
        before = optimizer.master(weight)
        weight.grad = torch.full_like(weight, gradient)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(optimizer.master(weight), before) == (gradient == float("inf"))
        assert scaler.last_step == ("skipped" if gradient == float("inf") else "stepped")
        optimizer.zero_grad()


def test_a_closure_that_is_given_up_leaves_the_exact_weights() -> None:
    weight = nn.Parameter(torch.tensor([0.3, 0.7]))
    optimizer = MasterWeights(Sam([weight], lambda groups: optim.SGD(groups, lr=0.1)), dtype=torch.bfloat16)
    scaler = LossScaler("cpu", init_scale=2.0, floor=1.0)
    evaluations: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        evaluations.append(float(weight.detach()[0]))
        weight.grad = torch.full_like(weight, 1.0 if len(evaluations) < 2 else float("nan"))
        return scaler.scale(torch.ones(()))

    assert scaler.step_with_closure(optimizer, closure) is None
    assert len(set(evaluations)) > 1
    assert same_bits(optimizer.master(weight), torch.tensor([0.3, 0.7]))


def test_pytorchs_scaler_takes_float16_weights_once_their_gradients_are_raised() -> None:
    weight, optimizer = fp16_training()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.ones(()))
    weight.grad = torch.full_like(weight, SMALL * 2.0**16)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):  # stock
        scaler.unscale_(optimizer)
    scaler.update(2.0**16)
    optimizer.raise_gradients()
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.master(weight).tolist() == [1 - SMALL * 2.0**20] * 2


def test_pytorchs_scaler_with_a_fused_optimizer_skips_too() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = MasterWeights(optim.SGD([weight], lr=1.0, fused=True), dtype=torch.bfloat16)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient, value in ((1.0, 0.75), (float("nan"), 0.75), (1.0, 0.25)):
        scaler.scale(torch.ones(()))
        weight.grad = torch.full_like(weight, gradient)
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.master(weight).tolist() == [value] * 2


def test_a_torch_that_cannot_raise_gradients_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, optimizer = fp16_training()
    weight.grad = torch.ones_like(weight)
    monkeypatch.setattr(gradients, "_may_differ", lambda: False)
    with pytest.raises(ValueError, match=r"install torch 2\.10 or newer"):
        optimizer.raise_gradients()


# -- memory ------------------------------------------------------------------------------------------------------------


def stored_bytes(optimizer: MasterWeights) -> dict[str, float]:
    """Returns the bytes per parameter element that are kept from step to step."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    elements = sum(p.numel() for p in weights)
    masters = [s.master.extra for p in weights if (s := stored_of(p)) is not None and s.master.extra is not None]
    states = [v for p in weights for v in optimizer.state[p].values() if isinstance(v, Tensor) and v.dim()]
    kinds = {
        "weights": weights,
        "masters": masters,
        "gradients": [p.grad for p in weights if p.grad is not None],
        "states": states,
    }
    return {kind: sum(t.numel() * t.element_size() for t in tensors) / elements for kind, tensors in kinds.items()}


@pytest.mark.parametrize(("mode", "master"), [("split", 2), ("float32", 4), ("kahan", 2), ("stochastic", 0)])
@pytest.mark.parametrize("fused_adam", [True, False])
def test_bytes_per_parameter(mode: str, master: int, fused_adam: bool) -> None:
    weights = [nn.Parameter(torch.randn(50, 20)), nn.Parameter(torch.randn(20))]
    optimizer = MasterWeights(optim.AdamW(weights, fused=fused_adam), mode, dtype=torch.bfloat16)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert stored_bytes(optimizer) == {"weights": 2, "masters": master, "gradients": 2, "states": 8}
    assert 2 + 2 + 2 + 8 == 14  # `split`


class _LargestTensor(TorchDispatchMode):
    """Notes the most elements that a new float32 tensor has."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        memory = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        is_new = isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in memory
        if is_new and result.dtype is torch.float32:
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("fused_adam", [True, False])
def test_a_step_raises_little_at_a_time(fused_adam: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_CPU_ELEMENTS", 256)
    monkeypatch.setattr(step, "_ELEMENTS_AT_A_TIME", 256)
    weights = [nn.Parameter(torch.randn(200 if not fused_adam else 5000)) for _ in range(10)]
    optimizer = MasterWeights(optim.AdamW(weights, fused=fused_adam, foreach=False), dtype=torch.bfloat16)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        noted: Any = _LargestTensor()  # type: ignore[no-untyped-call]
        with noted:
            optimizer.step()  # the first makes the states
    assert noted.largest <= 256


def test_nothing_is_left_of_a_model_that_is_gone() -> None:
    model, inner, optimizer = wrapped()
    give_gradients(model)
    optimizer.step()
    stored = stored_of(model.weight)
    assert stored is not None
    assert stored.master.extra is not None
    left = weakref.ref(stored.master.extra)
    del model, inner, optimizer, stored
    gc.collect()
    assert left() is None


# -- refusals ----------------------------------------------------------------------------------------------------------


def float32_optimizer() -> Optimizer:
    return optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def in_16_bits(dtype: torch.dtype = torch.bfloat16) -> Optimizer:
    return optim.SGD([nn.Parameter(torch.ones(2, dtype=dtype))], lr=0.1)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no optimizer": (lambda: MasterWeights([nn.Parameter(torch.ones(2))]), "got list as the optimizer"),  # type: ignore[arg-type]
    "nothing in 16 bits": (lambda: MasterWeights(float32_optimizer()), "give dtype=torch.bfloat16"),
    "an unknown mode": (lambda: MasterWeights(in_16_bits(), "exact"), "expected one of split, float32, kahan"),
    "split of float16": (lambda: MasterWeights(in_16_bits(torch.float16)), "for float16 weights give mode 'float32'"),
    "another dtype": (
        lambda: MasterWeights(float32_optimizer(), dtype=torch.float64),
        "expected torch.bfloat16, torch.float16 or None",
    ),
    "another granularity": (
        lambda: MasterWeights(in_16_bits(), granularity="part"),
        "got granularity 'part'; expected 'parameter', 'all' or None",
    ),
    "twice": (lambda: MasterWeights(MasterWeights(in_16_bits())), "has master weights already"),
    "twice by the inner one": (
        lambda: (lambda inner: (MasterWeights(inner), MasterWeights(inner)))(in_16_bits()),
        "has master weights already",
    ),
    "differentiable": (
        lambda: MasterWeights(optim.SGD([nn.Parameter(torch.ones(1).bfloat16())], differentiable=True)),
        "differentiable=True",
    ),
    "two modes": (
        lambda: (lambda p: (MasterWeights(optim.SGD([p])), MasterWeights(optim.SGD([p]), "kahan")))(
            nn.Parameter(torch.ones(1).bfloat16())
        ),
        "got mode 'kahan' and bfloat16 for a parameter that has master weights of mode 'split' in bfloat16",
    ),
    "no values": (
        lambda: MasterWeights(optim.SGD(nn.Linear(2, 2, device="meta").parameters()), dtype=torch.bfloat16),
        "a parameter without values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_what_to_do(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_two_optimizers_may_share_a_weight() -> None:
    weight = nn.Parameter(torch.ones(1))
    first = MasterWeights(optim.SGD([weight], lr=2.0**-12), dtype=torch.bfloat16)
    second = MasterWeights(optim.SGD([weight], lr=2.0**-13))
    for optimizer in (first, second):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert first.master(weight).tolist() == [1 - 2.0**-12 - 2.0**-13]


def test_weights_that_stay_in_float32_are_stepped_as_ever() -> None:
    low, wide = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(2))
    optimizer = MasterWeights(optim.SGD([low, wide], lr=2.0**-12))
    for weight in (low, wide):
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert wide.tolist() == optimizer.master(low).tolist() == [1 - 2.0**-12] * 2
    assert torch.equal(optimizer.master(wide), wide)
