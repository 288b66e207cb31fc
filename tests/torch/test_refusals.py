# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from floatwise.errors import BadInputError, FloatwiseError, PlanError
from floatwise.torch import prepare

MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
HALF = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2))

REFUSED: dict[str, tuple[tuple[nn.Module, Any, str], type[FloatwiseError], str]] = {
    "no parameters": ((nn.GELU(), OPTIMIZER, "fp32"), BadInputError, "GELU, a model without parameters"),
    "meta device": ((nn.Linear(2, 2, device="meta"), OPTIMIZER, "fp32"), BadInputError, "to_empty"),
    "16-bit weights": (
        (HALF, torch.optim.SGD(HALF.parameters(), lr=0.1), "fp16-mixed"),
        PlanError,
        r"got 2 trainable weights in 16 bits \('0\.weight' is bfloat16\).*call model\.float\(\)",
    ),
    "another model's optimizer": (
        (nn.Linear(2, 2), OPTIMIZER, "fp32"),
        BadInputError,
        "none of whose parameters are the model's",
    ),
    "no optimizer": ((MODEL, [], "fp32"), BadInputError, "got no optimizer"),
    "not an optimizer": ((MODEL, ["SGD"], "fp32"), BadInputError, "got str as an optimizer"),
    "float8 in the plan": ((MODEL, OPTIMIZER, "fp8-tensorwise"), PlanError, "use 'bf16-mixed'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_prepare_refuses(case: str) -> None:
    arguments, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        prepare(*arguments)


def test_what_the_messages_suggest_is_accepted() -> None:
    whole = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2)).float()
    both = nn.ModuleList([MODEL, whole])
    own = torch.optim.SGD(whole.parameters(), lr=0.1)
    prepare(whole, own, "fp16-mixed").close()
    prepare(both, [OPTIMIZER, own], "fp16-mixed").close()


@pytest.mark.parametrize("limits", [{"clip_norm": 0.0}, {"clip_value": -1.0}, {"clip_norm": math.nan}], ids=str)
def test_limits_that_are_none(limits: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="expected a positive number, or None not to clip"):
        prepare(MODEL, OPTIMIZER, "fp32").step(**limits)


def test_one_limit_at_a_time() -> None:
    with pytest.raises(BadInputError, match="give one of them"):
        prepare(MODEL, OPTIMIZER, "fp32").step(clip_norm=1.0, clip_value=1.0)


def test_float16_weights_need_gradients_of_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatwise.torch.refusals.hasattr", lambda *_: False, raising=False)
    with pytest.raises(PlanError, match=r"use torch 2\.10 or later, or 'fp16-mixed'"):
        prepare(MODEL, OPTIMIZER, "fp16-master")
