# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in loops that people write: refused in words, or mended after an interruption."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from floatwise.errors import BadInputError, PlanError
from floatwise.torch import Precision, prepare
from floatwise.torch.masters import stored_of


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def batch(precision: Precision, model: nn.Module) -> None:
    with precision.forward():
        outputs = model(torch.ones(4, 8))
    precision.backward(F.mse_loss(outputs.float(), torch.zeros(4, 4)))


@pytest.mark.parametrize("recipe", ["fp16-mixed", "fp16-master"])
def test_a_step_of_the_optimizer_itself_is_refused_under_a_loss_scale(recipe: str) -> None:
    model = make()
    optimizer = AdamW(model.parameters())
    precision = prepare(model, optimizer, recipe)
    batch(precision, model)
    with pytest.raises(BadInputError, match=r"call precision\.step\(\)"):
        optimizer.step()
    assert precision.step().stepped
    precision.close()
    optimizer.step()  # its own again


@pytest.mark.parametrize(
    ("dtype", "recipe"),
    [(torch.bfloat16, "fp16-master"), (torch.float16, "bf16-master"), (torch.bfloat16, "bf16-mixed")],
)
def test_weights_in_another_16_bit_format_are_refused(dtype: torch.dtype, recipe: str) -> None:
    model = make().to(dtype)
    with pytest.raises(PlanError, match=r"call model\.float\(\)"):
        prepare(model, SGD(model.parameters(), 0.1), recipe)


@pytest.mark.parametrize("plan", [None, 16, torch.bfloat16, ""])
def test_what_is_no_plan_is_named(plan: Any) -> None:
    model = make()
    with pytest.raises(BadInputError, match="as the plan; expected a recipe such as 'bf16-mixed'"):
        prepare(model, SGD(model.parameters(), 0.1), plan)


def test_prepared_closed_and_prepared_again() -> None:
    model = make()
    optimizer = AdamW(model.parameters())
    for recipe in ("bf16-master", "bf16-master", "fp32"):
        precision = prepare(model, optimizer, recipe)
        batch(precision, model)
        assert precision.step().stepped
        precision.close()
        assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_weights_swapped_through_data_keep_their_masters() -> None:
    model = make()
    precision = prepare(model, SGD(model.parameters(), 0.1), "bf16-master")
    batch(precision, model)
    precision.step()
    before = model.state_dict()
    own = [p.data for p in model.parameters()]
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter, dtype=torch.float32)
    assert not any(bool(value.any()) for value in model.state_dict().values())
    for parameter, data in zip(model.parameters(), own, strict=True):
        parameter.data = data
    assert all(stored_of(p) is not None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    precision.close()


class Interrupted(Adam):
    """An Adam whose user presses Ctrl-C in the middle of a step."""

    presses = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        super().step()
        if self.presses:
            raise KeyboardInterrupt


@pytest.mark.parametrize("recipe", ["bf16-master", "fp16-master", "fp16-mixed"])
def test_an_optimizer_may_call_the_step_of_its_base_class(recipe: str) -> None:
    Adam([nn.Parameter(torch.ones(1))])  # PyTorch hooks the step of a class when the first of it is made
    model = make()
    optimizer = Interrupted(model.parameters(), lr=0.01)
    precision = prepare(model, optimizer, recipe)
    for _ in range(3):
        before = model.state_dict()
        before = {name: value.clone() for name, value in before.items()}
        batch(precision, model)
        assert precision.step().stepped
        precision.zero_grad()
        assert not all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}
    precision.close()


def press_ctrl_c(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("recipe", ["bf16-master", "fp16-master", "fp16-mixed"])
@pytest.mark.parametrize("kind", [Interrupted, SGD])
def test_training_goes_on_after_an_interrupted_step(
    recipe: str, kind: type[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    precision = prepare(model, optimizer, recipe)
    batch(precision, model)
    precision.step()
    precision.zero_grad()
    batch(precision, model)
    with monkeypatch.context() as patch:
        if kind is Interrupted:
            patch.setattr(Interrupted, "presses", True)
        else:
            patch.setattr(sys.modules["torch.optim.sgd"], "sgd", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            precision.step()
    precision.zero_grad()
    parameters: list[Tensor] = list(model.parameters())
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in parameters]
    assert all(any(key is p for p in parameters) for key in optimizer.state)
    optimizer.state_dict()
    batch(precision, model)
    assert precision.step().stepped
    precision.close()
