# SPDX-License-Identifier: Apache-2.0
"""A model's state dict, copies and pickles: float32 and exact while the weights are stored in 16 bits."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.torch.masters.training import same_bits
from torch import Tensor, nn, optim

from floatwise.torch.masters import MasterWeights, float32_checkpoints, give_master, stored_of

MODES = ["split", "float32", "kahan", "stochastic"]


class Tied(nn.Module):
    """Nested modules, a buffer, a tied weight and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("num_batches", torch.tensor(0))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits * self.temperature


def trained(mode: str = "split", steps: int = 3) -> tuple[Tied, MasterWeights]:
    torch.manual_seed(0)
    model = Tied()
    optimizer = MasterWeights(optim.AdamW(model.parameters(), lr=1e-3), mode, dtype=torch.bfloat16, model=model)
    train(model, optimizer, steps)
    return model, optimizer


def train(model: nn.Module, optimizer: optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


def loaded(state: dict[str, Tensor]) -> Tied:
    """Returns a float32 model with this state."""
    model = Tied()
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("mode", MODES)
def test_the_state_dict_is_that_of_a_float32_model(mode: str) -> None:
    model, optimizer = trained(mode)
    state = model.state_dict()
    assert list(state) == list(Tied().state_dict())
    assert all(v.dtype is (torch.int64 if "num_batches" in k else torch.float32) for k, v in state.items())
    assert not any(v.requires_grad for v in state.values())
    plain = loaded(state)
    for (name, parameter), wide in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert parameter.dtype is torch.bfloat16, name
        assert same_bits(optimizer.master(parameter), wide), name


def test_tied_weights_are_one_tensor_in_the_state_dict() -> None:
    model, _ = trained()
    state = model.state_dict()
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    again = model.state_dict()
    assert again["head.weight"].data_ptr() != state["head.weight"].data_ptr()


def test_a_state_dict_filled_twice_has_the_present_values() -> None:
    model, optimizer = trained()
    state: dict[str, Any] = {}
    ordered = model.state_dict()
    train(model, optimizer, 1)
    for destination in (state, ordered):
        model.state_dict(destination=destination)
        assert same_bits(destination["head.weight"], optimizer.master(model.head.weight))


def test_the_state_dict_does_not_follow_the_training() -> None:
    model, optimizer = trained()
    state = model.state_dict()
    before = copy.deepcopy(state)
    train(model, optimizer, 1)
    assert all(torch.equal(state[k], before[k]) for k in state)


@pytest.mark.parametrize("mode", MODES)
def test_a_float32_state_dict_is_loaded_exactly(mode: str) -> None:
    model, optimizer = trained(mode, steps=0)
    wide = Tied()
    if mode in ("kahan", "stochastic"):  # what they can hold
        other = trained(mode)[0]
        wide = loaded(other.state_dict())
    train(model, optimizer, 1)
    assert model.load_state_dict(wide.state_dict()).missing_keys == []
    for parameter, value in zip(model.parameters(), wide.parameters(), strict=True):
        assert parameter.dtype is torch.bfloat16
        assert same_bits(optimizer.master(parameter), value)


def test_parts_and_what_does_not_match_are_loaded_as_ever() -> None:
    model, optimizer = trained()
    before = optimizer.master(model.head.weight)
    wide = Tied()
    bias: Any = model.body[0].bias
    state = {"temperature": wide.temperature.detach(), "unknown": torch.ones(1), "body.0.bias": torch.ones(4) / 3}
    result = model.load_state_dict(state, strict=False)
    assert result.unexpected_keys == ["unknown"]
    assert "head.weight" in result.missing_keys
    assert same_bits(optimizer.master(model.temperature), wide.temperature)
    assert optimizer.master(bias).tolist() == [torch.tensor(1 / 3).item()] * 4
    assert torch.equal(optimizer.master(model.head.weight), before)
    with pytest.raises(RuntimeError, match="size mismatch for temperature"):
        model.load_state_dict({"temperature": torch.ones(3)}, strict=False)
    assert same_bits(optimizer.master(model.temperature), wide.temperature)


def test_state_dicts_of_parts_of_the_model() -> None:
    model, optimizer = trained()
    weight: Any = model.body[0].weight
    state = model.body.state_dict(prefix="a.")
    assert same_bits(state["a.0.weight"], optimizer.master(weight))
    wide = Tied()
    model.body.load_state_dict(wide.body.state_dict())
    assert same_bits(optimizer.master(weight), wide.body.state_dict()["0.weight"])


def test_a_16_bit_state_dict_is_loaded_too() -> None:
    model, optimizer = trained()
    low = Tied().bfloat16()
    model.load_state_dict(low.state_dict())
    assert same_bits(optimizer.master(model.head.weight), low.head.weight.float())


def test_keep_vars_gives_the_parameters_themselves() -> None:
    model, _ = trained()
    assert model.state_dict(keep_vars=True)["head.weight"] is model.head.weight


def test_assigning_a_state_dict_is_refused() -> None:
    model, optimizer = trained()
    with pytest.raises(ValueError, match=r"assign=True.*replaces parameters that have master weights"):
        model.load_state_dict(Tied().state_dict(), assign=True)
    assert any(p is model.head.weight for p in optimizer.param_groups[0]["params"])


def test_safetensors(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {k: v.clone() for k, v in model.state_dict().items()}  # safetensors refuses memory that is shared
    save_file(state, tmp_path / "weights.safetensors")
    plain = loaded(load_file(tmp_path / "weights.safetensors"))
    assert same_bits(plain.head.weight, optimizer.master(model.head.weight))


def test_on_removal_all_is_as_before() -> None:
    model = Tied()
    give_master(model.temperature, "split", torch.bfloat16)
    checkpoints = float32_checkpoints(model)
    again = float32_checkpoints(model)  # the same hooks serve
    assert model.state_dict()["temperature"].dtype is torch.float32
    again.remove()
    assert model.state_dict()["temperature"].dtype is torch.float32
    checkpoints.remove()
    assert model.state_dict()["temperature"].dtype is torch.bfloat16


# -- copies and pickles ------------------------------------------------------------------------------------------------


def through_pickle(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
@pytest.mark.parametrize("mode", MODES)
def test_a_copy_is_a_float32_model_with_the_exact_values(mode: str, copied: Any) -> None:
    model, optimizer = trained(mode)
    exact = {name: optimizer.master(p) for name, p in model.named_parameters()}
    other = copied(model)
    assert other.head.weight is other.embedding.weight
    for name, parameter in other.named_parameters():
        assert parameter.dtype is torch.float32
        assert stored_of(parameter) is None
        assert parameter.requires_grad
        assert same_bits(parameter, exact[name])
        assert same_bits(parameter, other.state_dict()[name])
    # The model itself is as it was.
    assert all(same_bits(optimizer.master(p), exact[n]) for n, p in model.named_parameters())
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())


def test_an_average_kept_in_a_copy_moves() -> None:
    model, _ = trained()
    average = copy.deepcopy(model)
    before = average.head.weight.detach().clone()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            parameter.fill_(1.0)
            mean.mul_(0.9999).add_(parameter, alpha=0.0001)
    moved = average.head.weight.detach() - before
    assert torch.allclose(moved, 0.0001 * (1 - before), rtol=1e-2)


def test_a_copy_can_get_masters_of_its_own() -> None:
    model, first = trained()
    other = copy.deepcopy(copy.deepcopy(model))
    optimizer = MasterWeights(optim.SGD(other.parameters(), lr=2.0**-14), dtype=torch.bfloat16, model=other)
    before = [optimizer.master(p) for p in other.parameters()]
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = other.state_dict()
    for (name, parameter), value in zip(other.named_parameters(), before, strict=True):
        assert same_bits(state[name], value - 2.0**-14)
        assert same_bits(optimizer.master(parameter), value - 2.0**-14)
    assert torch.equal(first.master(model.temperature), before[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
@pytest.mark.parametrize("mode", MODES)
def test_a_copied_or_pickled_optimizer_goes_on_exactly(mode: str, copied: Any) -> None:
    model, optimizer = trained(mode)
    other, second = copied((model, optimizer))
    assert isinstance(second, MasterWeights)
    assert second.param_groups[0]["params"][0] is other.temperature
    for m, o in ((model, optimizer), (other, second)):
        train(m, o, 3)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert theirs.dtype is torch.bfloat16
        assert same_bits(optimizer.master(mine), second.master(theirs))
    assert other.state_dict()["temperature"].dtype is torch.float32


def test_an_optimizer_without_the_model_can_be_copied_too() -> None:
    weight = nn.Parameter(torch.tensor([0.3]))
    optimizer = MasterWeights(optim.SGD([weight], lr=2.0**-12), dtype=torch.bfloat16)
    other = copy.deepcopy(optimizer)
    copied = other.param_groups[0]["params"][0]
    assert copied is not weight
    assert same_bits(other.master(copied), torch.tensor([0.3]))


# -- torch.compile -----------------------------------------------------------------------------------------------------


def test_a_compiled_model_follows_its_weights() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = MasterWeights(optim.AdamW(model.parameters(), lr=0.1), dtype=torch.bfloat16, model=compiled)
    x = torch.randn(3, 4).bfloat16()
    for _ in range(2):
        out = compiled(x)
        assert torch.equal(out, model(x))
        out.float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert list(compiled.state_dict()) == ["_orig_mod." + name for name in model.state_dict()]
    assert same_bits(compiled.state_dict()["_orig_mod.0.weight"], optimizer.master(next(model.parameters())))


def test_a_compiled_step_is_the_step() -> None:
    torch._dynamo.reset()
    weight = nn.Parameter(torch.ones(4))
    optimizer = MasterWeights(optim.AdamW([weight], fused=True), dtype=torch.bfloat16)
    step: Any = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        step()
    reference = nn.Parameter(torch.ones(4))
    plain = optim.AdamW([reference], fused=True)
    for _ in range(2):
        reference.grad = torch.ones(4)
        plain.step()
    assert same_bits(optimizer.master(weight), reference)
