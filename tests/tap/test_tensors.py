# SPDX-License-Identifier: Apache-2.0
"""Tensors inside of what modules take and return."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from floatwise.tap.tensors import floating_tensors, map_tensors, to_float32, values_are_real

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None
    made: int = field(init=False, default=3)


A, B = torch.ones(1), torch.zeros(2, dtype=torch.bfloat16)
WHOLE = torch.ones(2, dtype=torch.long)

NESTED: list[tuple[Any, list[Tensor]]] = [
    (A, [A]),
    (WHOLE, []),
    (None, []),
    ("text", []),
    ((A, [B, WHOLE]), [A, B]),
    ({"x": A, "y": {"z": B}}, [A, B]),
    (OrderedDict(x=B), [B]),
    (Pair(A, B), [A, B]),
    (Output(A, B), [A, B]),
    (Output, []),
]


@pytest.mark.parametrize(("value", "expected"), NESTED, ids=lambda value: type(value).__name__)
def test_floating_tensors(value: Any, expected: list[Tensor]) -> None:
    assert [id(tensor) for tensor in floating_tensors(value)] == [id(tensor) for tensor in expected]


@pytest.mark.parametrize(("value", "expected"), NESTED, ids=lambda value: type(value).__name__)
def test_what_needs_no_change_is_returned_itself(value: Any, expected: list[Tensor]) -> None:
    assert map_tensors(value, lambda tensor: tensor) is value


@pytest.mark.parametrize("value", [(A, B), [A, B], {"a": A, "b": B}, Pair(A, B), Output(A, B), OrderedDict(a=A, b=B)])
def test_map_tensors_keeps_the_kind_and_changes_a_copy(value: Any) -> None:
    changed = map_tensors(value, to_float32)
    assert type(changed) is type(value)
    assert [tensor.dtype for tensor in floating_tensors(changed)] == [torch.float32] * 2
    assert list(floating_tensors(value))[1] is B, "the script's own container is as it was"


def test_a_field_that_is_no_argument_survives() -> None:
    assert map_tensors(Output(B), to_float32).made == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_to_float32_touches_16_bits_only(dtype: torch.dtype) -> None:
    value = torch.ones(2, dtype=dtype)
    assert to_float32(value) is value


def test_values_are_real_outside_of_tracing() -> None:
    assert values_are_real()
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(values_are_real())
        return x

    torch.func.vmap(look)(torch.ones(2, 2))
    assert seen == [False]


def test_a_frozen_dataclass_comes_back_changed() -> None:
    @dataclass(frozen=True)
    class Frozen:
        x: Tensor

    assert map_tensors(Frozen(B), to_float32).x.dtype is torch.float32
