# SPDX-License-Identifier: Apache-2.0
"""Weights and inputs that the script puts into 16 bits stay float32; everything else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tap.listening import Listener
from torch import Tensor, nn

from floatwise.tap.core import Tap
from floatwise.tap.existing import ExistingPrecision

SIXTEEN = torch.zeros(1, dtype=torch.float16)
Cast = Callable[[Tensor], Tensor]

TO_SIXTEEN_BITS: list[Cast] = [
    lambda x: x.half(),
    lambda x: x.bfloat16(),
    lambda x: x.half(memory_format=torch.contiguous_format),  # type: ignore[call-arg]
    lambda x: x.to(torch.float16),
    lambda x: x.to(dtype=torch.bfloat16),
    lambda x: x.to("cpu", torch.float16),
    lambda x: x.to(torch.device("cpu"), dtype=torch.float16, non_blocking=True),
    lambda x: x.to(SIXTEEN),
    lambda x: x.to(other=SIXTEEN),
    lambda x: x.type(torch.float16),
    lambda x: x.type(dtype=torch.bfloat16),
]


@pytest.mark.parametrize("cast", TO_SIXTEEN_BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_a_tensor_becomes_float32(existing: ExistingPrecision, dtype: torch.dtype, cast: Cast) -> None:
    x = torch.ones(2, dtype=dtype)
    assert cast(x).dtype is torch.float32
    assert cast(x).tolist() == [1.0, 1.0]


OTHER_CASTS: list[tuple[Cast, torch.dtype]] = [
    (lambda x: x.double(), torch.float64),
    (lambda x: x.long(), torch.int64),
    (lambda x: x.to(torch.int32), torch.int32),
    (lambda x: x.to("cpu"), torch.float32),
    (lambda x: x.to(torch.zeros(1, dtype=torch.float64)), torch.float64),
    (lambda x: x.to(torch.float64, copy=True), torch.float64),
    (lambda x: x.type(torch.float64), torch.float64),
    (lambda x: x.to(torch.float8_e4m3fn), torch.float8_e4m3fn),
    (lambda x: x.bool(), torch.bool),
]


@pytest.mark.parametrize(("cast", "dtype"), OTHER_CASTS)
def test_other_casts_are_the_scripts(existing: ExistingPrecision, cast: Cast, dtype: torch.dtype) -> None:
    assert cast(torch.ones(2)).dtype is dtype


def test_the_name_of_a_type_can_be_asked_for(existing: ExistingPrecision) -> None:
    assert torch.ones(1).type() == "torch.FloatTensor"


def test_whole_numbers_stay_whole(existing: ExistingPrecision) -> None:
    labels = torch.arange(3)
    assert labels.to("cpu").dtype is torch.int64
    model = nn.Embedding(4, 2).half()
    assert model(labels).dtype is torch.float32


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex_numbers_are_left_alone(existing: ExistingPrecision) -> None:
    x = torch.ones(2, dtype=torch.complex64)
    assert x.to(torch.complex128).dtype is torch.complex128
    assert x.to("cpu").dtype is torch.complex64
    assert x.half().dtype is torch.float16


MODULE_CASTS: list[tuple[str, Callable[[nn.Module], nn.Module]]] = [
    ("float16", lambda m: m.half()),
    ("bfloat16", lambda m: m.bfloat16()),
    ("bfloat16", lambda m: m.to(torch.bfloat16)),
    ("float16", lambda m: m.to("cpu", torch.float16)),
    ("float16", lambda m: m.to(dtype=torch.float16)),
    ("float16", lambda m: m.to(SIXTEEN)),
    ("float16", lambda m: m.to(tensor=SIXTEEN)),
]


@pytest.mark.parametrize(("dtype", "cast"), MODULE_CASTS)
def test_a_model_keeps_float32_weights_and_it_is_found(
    existing: ExistingPrecision, heard: Listener, dtype: str, cast: Callable[[nn.Module], nn.Module]
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert cast(model) is model
    assert {t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()} == {torch.float32}
    assert heard.of("found") == [("found_low_precision_weights", dtype)]


def test_moving_a_model_is_no_finding(existing: ExistingPrecision, heard: Listener) -> None:
    model = nn.Linear(2, 2).to("cpu").to(torch.float64)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert model.weight.dtype is torch.float64
    assert heard.of("found") == []


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_weights_made_in_16_bits_are_float32_for_the_optimizer(
    existing: ExistingPrecision, heard: Listener, low: torch.dtype
) -> None:
    layer = nn.Linear(2, 2, dtype=low)
    groups: list[dict[str, Any]] = [{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.1}]
    optimizer = torch.optim.Adam(groups)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}
    assert [found[0] for found in heard.of("found")] == ["found_low_precision_weights"]
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].dtype is torch.float32


def test_weights_from_a_checkpoint_are_float32_for_the_first_call(existing: ExistingPrecision) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    low = {name: torch.ops.aten._to_copy(t, dtype=torch.bfloat16) for name, t in model.state_dict().items()}
    model.load_state_dict(low, assign=True)
    assert model[0].weight.dtype is torch.bfloat16
    x = torch.ones(3, 2, dtype=torch.bfloat16)
    (inputs,), keywords = existing.raise_inputs(model, (x,), {"more": [x]})
    assert inputs.dtype is keywords["more"][0].dtype is torch.float32
    assert model(inputs).dtype is torch.float32


def test_a_checkpoint_loaded_into_float32_stays_float32(existing: ExistingPrecision, heard: Listener) -> None:
    layer = nn.Linear(2, 2)
    layer.load_state_dict({"weight": torch.ones(2, 2, dtype=torch.float16), "bias": torch.zeros(2)})
    assert layer.weight.dtype is torch.float32
    existing.raise_inputs(layer, (), {})
    assert heard.of("found") == []


def test_every_parameter_is_looked_at_once(existing: ExistingPrecision, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(existing, "raise_weights", lambda parameters: calls.append(len(parameters)))
    layer = nn.Linear(2, 2)
    for _ in range(3):
        existing.raise_inputs(layer, (), {})
    assert calls == [2]


@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("planned", [torch.float16, torch.bfloat16])
def test_within_the_plans_region_16_bits_are_the_plans(tap: Tap, asked: torch.dtype, planned: torch.dtype) -> None:
    ExistingPrecision(tap, compute_dtype=planned).install()
    x = torch.ones(2, 2)
    assert x.to(asked).dtype is torch.float32
    torch.set_autocast_dtype("cpu", planned)
    torch.set_autocast_enabled("cpu", True)
    try:
        assert x.to(asked).dtype is planned
        assert x.half().dtype is planned
        assert x.type(asked).dtype is planned
        assert x.to(torch.empty(1, dtype=asked)).dtype is planned
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.clear_autocast_cache()
    assert x.half().dtype is torch.float32
