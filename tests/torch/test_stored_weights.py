# SPDX-License-Identifier: Apache-2.0
"""Which weights a plan stores in 16 bits, how their gradients add up, and the way back to float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from floatwise.plan import ModulePolicy, Plan, Policy, recipe
from floatwise.torch import prepare
from floatwise.torch.masters import MasterWeights, float32_value, gradients, stored_of
from floatwise.torch.stored_weights import Float32View, StoredWeights, store_weights, with_masters

FLOAT32 = Policy(param_dtype="float32", compute_dtype="float32")


def bf16(*islands: str, kept: tuple[str, ...] = ()) -> Plan:
    """Returns `bf16-master` with islands, and with modules that only keep their weights in float32."""
    plan = recipe("bf16-master")
    entries = [ModulePolicy(module=glob, policy=FLOAT32) for glob in islands]
    entries += [
        ModulePolicy(module=glob, policy=Policy(param_dtype="float32", compute_dtype="bfloat16")) for glob in kept
    ]
    return plan.model_copy(update={"modules": tuple(entries)})


class Network(nn.Module):
    """A little of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2)])
        self.batch_norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.3))


def tied() -> Network:
    model = Network()
    model.head.weight = model.embedding.weight
    return model


def frozen() -> Network:
    model = Network()
    model.embedding.weight.requires_grad_(False)
    return model


def frozen_in_16_bits() -> Network:
    model = Network()
    model.embedding.bfloat16().weight.requires_grad_(False)
    return model


def in_16_bits() -> Network:
    model = Network()
    model.blocks.bfloat16()
    return model


def double() -> Network:
    model = Network()
    model.scale.data = model.scale.data.double()
    return model


#: The model, the plan, and the parameters, by the beginnings of their names, that stay in another format.
STORED: dict[str, tuple[Callable[[], Network], Plan, dict[str, torch.dtype]]] = {
    "batch norm stays": (Network, bf16(), {}),
    "an island": (Network, bf16("blocks.0"), {"blocks.0": torch.float32}),
    "weights alone": (Network, bf16(kept=("head",)), {"head": torch.float32}),
    "all modules": (Network, bf16("*"), dict.fromkeys(["embedding", "blocks", "head"], torch.float32)),
    "tied with an island": (tied, bf16("head"), {"embedding": torch.float32}),
    "tied with an island before": (tied, bf16("embedding"), {"embedding": torch.float32}),
    "tied": (tied, bf16(), {}),
    "frozen": (frozen, bf16(), {}),
    "in 16 bits already": (in_16_bits, bf16(), {}),
    "float64": (double, bf16(), {"scale": torch.float64}),
}


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_in_which_format(name: str) -> None:
    make, plan, others = STORED[name]
    model = make()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    objects = dict(model.named_parameters())
    stored = store_weights(model, plan)
    for path, parameter in model.named_parameters():
        kept = {"batch_norm": torch.float32, **others}
        wanted = next((dtype for start, dtype in kept.items() if path.startswith(start)), torch.bfloat16)
        assert parameter.dtype is wanted, path
        assert parameter is objects[path]
        assert (stored_of(parameter) is not None) == (wanted is torch.bfloat16)
        assert torch.equal(float32_value(parameter), before[path].float())
    assert {id(p) for p in stored.parameters} == {id(p) for p in model.parameters() if p.dtype is torch.bfloat16}
    stored.restore()
    assert all(stored_of(p) is None for p in model.parameters())
    assert all(torch.equal(p, before[n].to(p.dtype)) for n, p in model.named_parameters())


def test_frozen_weights_in_16_bits_stay_as_they_are() -> None:
    model = frozen_in_16_bits()
    stored = store_weights(model, bf16())
    assert stored_of(model.embedding.weight) is None
    assert model.embedding.weight.dtype is torch.bfloat16
    assert stored_of(model.head.weight) is not None
    stored.restore()
    assert model.embedding.weight.dtype is torch.bfloat16


def test_only_what_is_wanted_is_stored() -> None:
    model = Network()
    stored = store_weights(model, bf16(), wanted=lambda p: p is model.head.weight)
    assert stored.parameters == [model.head.weight]
    assert model.scale.dtype is torch.float32


def test_a_plan_with_float32_weights_stores_nothing() -> None:
    model = Network()
    stored = store_weights(model, recipe("bf16-mixed"))
    assert stored.parameters == []
    assert all(p.dtype is torch.float32 for p in model.parameters())
    stored.restore()


def test_the_optimizer_is_wrapped_where_its_weights_have_masters() -> None:
    model = Network()
    norm = optim.SGD(model.batch_norm.parameters())
    rest = optim.SGD([model.head.weight])
    store_weights(model, bf16())
    assert with_masters(norm, bf16()) is norm
    wrapped = with_masters(rest, bf16())
    assert isinstance(wrapped, MasterWeights)
    assert wrapped.inner is rest
    assert with_masters(wrapped, bf16()) is wrapped


@pytest.mark.parametrize(("name", "dtype"), [("bf16-master", torch.bfloat16), ("fp16-master", torch.float16)])
def test_prepared_training_moves_exact_weights_and_close_gives_them_back(name: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = optim.SGD(model.parameters(), lr=1e-4)
    precision = prepare(model, optimizer, name)
    before = model.state_dict()
    for _ in range(3):
        with precision.forward():
            loss = model(torch.ones(2, 4)).float().square().mean()
        precision.backward(loss)
        assert precision.step().stepped
        precision.zero_grad()
    assert all(p.dtype is dtype for p in model.parameters())
    after = model.state_dict()
    assert all(v.dtype is torch.float32 for v in after.values())
    moved = {name: (after[name] - before[name]).abs().max() for name in after}
    assert all(0 < m < 1e-3 for m in moved.values())
    precision.close()
    for name, parameter in model.named_parameters():
        assert parameter.dtype is torch.float32
        assert torch.equal(parameter, after[name])
    model(torch.ones(2, 4)).sum().backward()  # its gradients are float32 again
    optimizer.step()


# -- gradients that add up --------------------------------------------------------------------------------------------


def micro_gradients(name: str, summands: list[float]) -> float:
    """Returns the sum of the gradients of micro-batches, as the step finds it."""
    model = nn.Linear(1, 1, bias=False)
    precision = prepare(model, optim.SGD(model.parameters(), lr=0.1), name)
    for summand in summands:
        with precision.forward():
            loss = model(torch.full((1, 1), summand)).float().sum() / 16  # scaled by 2**16 it fits float16
        precision.backward(loss)
    precision.unscale()
    assert model.weight.grad is not None
    total = float(model.weight.grad) * 16
    precision.close()
    return total


@pytest.mark.parametrize(("name", "dtype"), [("bf16-master", torch.bfloat16), ("fp16-master", torch.float16)])
def test_many_micro_gradients_add_up(name: str, dtype: torch.dtype) -> None:
    summand = 0.0498046875  # 4096 of them: 204
    stock = torch.zeros((), dtype=dtype)
    for _ in range(600):
        stock += summand
    assert float(stock) < 600 * summand * 0.97  # stock: 16 bits stop growing
    assert micro_gradients(name, [summand] * 600) == pytest.approx(600 * summand, rel=1e-3)


def test_a_single_gradient_stays_in_16_bits() -> None:
    model = nn.Linear(2, 2)
    stored = store_weights(model, bf16())
    stored.sum_in_float32()
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    grad = model.weight.grad
    assert grad is not None
    assert grad.dtype is torch.bfloat16
    stored.sum_in_float32()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.float32
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    assert model.weight.grad.dtype is torch.float32
    assert model.weight.grad.tolist() == [[2.0, 2.0]] * 2
    model.zero_grad()
    model(torch.ones(1, 2).bfloat16()).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.bfloat16  # nothing is left of it
    stored.restore()


def test_before_torch_2_10_gradients_add_up_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    stored = store_weights(model, bf16())
    monkeypatch.setattr(gradients, "_may_differ", lambda: False)
    for _ in range(2):
        stored.sum_in_float32()
        model(torch.ones(1, 2).bfloat16()).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is torch.bfloat16
    assert model.weight.grad.tolist() == [[2.0, 2.0]] * 2


# -- what cannot mix formats -------------------------------------------------------------------------------------------


def test_a_float32_view_for_pytorchs_average() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = optim.swa_utils.AveragedModel(model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9999))
    store_weights(model, bf16())
    view: Any = Float32View(model)
    average.update_parameters(view)
    first = [p.detach().clone() for p in average.module.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    average.update_parameters(view)
    for before, mean, now in zip(first, average.module.parameters(), view.parameters(), strict=True):
        assert torch.allclose(mean, before * 0.9999 + now * 0.0001, atol=0, rtol=1e-6)
        assert not torch.equal(mean, before)
    assert [b.shape for b in view.buffers()] == [b.shape for b in model.buffers()]


def test_fsdp1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from floatwise.torch import stored_weights

    monkeypatch.setattr(stored_weights, "has_fsdp1", lambda model: True)
    model = Network()
    with pytest.raises(ValueError, match=r"got a FullyShardedDataParallel.*wrap the model with"):
        store_weights(model, bf16())
    assert model.head.weight.dtype is torch.float32
    assert isinstance(store_weights(model, recipe("bf16-mixed")), StoredWeights)
