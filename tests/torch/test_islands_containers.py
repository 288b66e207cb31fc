# SPDX-License-Identifier: Apache-2.0
"""What an island does to the tensors inside whatever it is given and returns."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from floatwise.plan import ModulePolicy, Plan, Policy, recipe
from floatwise.torch import apply_islands, autocast_region


def island(compute: Any = "float32") -> Plan:
    return recipe("bf16-mixed", modules=(ModulePolicy(module="0", policy=Policy(compute_dtype=compute)),))


def within(model: nn.Module, value: Any) -> Any:
    with autocast_region(recipe("bf16-mixed"), "cpu"):
        return model(value)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclasses.dataclass
class Batch:
    tokens: Tensor
    mask: Tensor
    nested: dict[str, Any]


def _dtypes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.")
    if dataclasses.is_dataclass(value):
        return {f.name: _dtypes(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: _dtypes(v) for k, v in value.items()}
    if value is None:
        return None
    return [_dtypes(v) for v in value]


class Echo(nn.Module):
    def forward(self, value: Any, *, extra: Any = None) -> Any:
        self.kinds = (type(value), _dtypes(value), _dtypes(extra) if extra is not None else None)
        return value


LOW = torch.ones(2, dtype=torch.bfloat16)
WHOLE = torch.ones(2, dtype=torch.int64)
DOUBLE = torch.ones(2, dtype=torch.float64)

CONTAINERS: list[tuple[Any, Any]] = [
    (LOW, "float32"),
    (WHOLE, "int64"),
    (DOUBLE, "float64"),
    ([LOW, (WHOLE, [LOW])], ["float32", ["int64", ["float32"]]]),
    ({"a": LOW, "b": {"c": LOW.half()}}, {"a": "float32", "b": {"c": "float32"}}),
    (Pair(LOW, DOUBLE), ["float32", "float64"]),
    (
        Batch(WHOLE, LOW, {"x": LOW}),
        {"tokens": "int64", "mask": "float32", "nested": {"x": "float32"}},
    ),
]


class TestContainers:
    @pytest.mark.parametrize(("value", "dtypes"), CONTAINERS, ids=lambda v: type(v).__name__)
    def test_sixteen_bit_inputs_are_raised_wherever_they_are(self, value: Any, dtypes: Any) -> None:
        model = nn.Sequential(Echo())
        apply_islands(model, island())
        with autocast_region(recipe("bf16-mixed"), "cpu"):
            model[0](value, extra=[value])
        assert model[0].kinds == (type(value), dtypes, [dtypes])

    @pytest.mark.parametrize(("value", "dtypes"), CONTAINERS, ids=lambda v: type(v).__name__)
    def test_outputs_too(self, value: Any, dtypes: Any) -> None:
        model = nn.Sequential(Echo())
        apply_islands(model, island("bfloat16"))
        got = within(model, value)
        assert type(got) is type(value)
        assert _dtypes(got) == dtypes

    def test_what_holds_nothing_to_raise_is_the_same_object(self) -> None:
        model = nn.Sequential(Echo())
        apply_islands(model, island())
        cache: dict[str, Tensor] = {"x": WHOLE}
        assert within(model, cache) is cache

    def test_model_outputs_of_transformers(self) -> None:
        outputs = pytest.importorskip("transformers.modeling_outputs")
        model = nn.Sequential(Echo())
        apply_islands(model, island())
        got = within(model, outputs.CausalLMOutput(logits=LOW))
        assert type(got) is outputs.CausalLMOutput
        assert got.logits.dtype is torch.float32
        assert got["logits"].dtype is torch.float32
