# SPDX-License-Identifier: Apache-2.0
"""Tensors inside whatever a module takes or returns: tuples, dicts, dataclasses, model outputs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["SIXTEEN_BIT", "floating_tensors", "map_tensors", "to_float32", "values_are_real"]

SIXTEEN_BIT = frozenset({torch.float16, torch.bfloat16})


def floating_tensors(value: Any) -> Iterator[Tensor]:
    """Yields every floating point tensor in `value`, depth first."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from floating_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from floating_tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from floating_tensors(getattr(value, field.name, None))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns `value` with `change` applied to every tensor in it; what holds none is returned as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(value, change)
    if isinstance(value, Mapping):
        return _map_mapping(value, change)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, change) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return _rebuilt(value, items)
    return value


def to_float32(tensor: Tensor) -> Tensor:
    """Returns 16-bit floating tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in SIXTEEN_BIT else tensor


def values_are_real() -> bool:
    """False where operators are traced or vectorised, or run on fake tensors: there are no values to look at."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def _rebuilt(value: Any, items: list[Any]) -> Any:
    if hasattr(value, "_fields"):
        return type(value)(*items)
    if type(value) in (tuple, list, torch.Size):
        return type(value)(items)
    if isinstance(value, list):
        changed = copy.copy(value)
        changed[:] = items
        return changed
    return value  # a tuple of the user's own, whose constructor nobody knows


def _map_mapping(value: Mapping[Any, Any], change: Callable[[Tensor], Tensor]) -> Any:
    items = {key: map_tensors(item, change) for key, item in value.items()}
    if all(items[key] is value[key] for key in items):
        return value
    if type(value) is dict:
        return items
    changed = copy.copy(value)  # a default dict, a model output: whatever its constructor wants
    if isinstance(changed, MutableMapping):
        changed.update(items)
        return changed
    return value


def _map_dataclass(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    changed = {}
    for field in dataclasses.fields(value):
        if not field.init:
            continue
        old = getattr(value, field.name, None)
        new = map_tensors(old, change)
        if new is not old:
            changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value
