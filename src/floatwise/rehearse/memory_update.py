# SPDX-License-Identifier: Apache-2.0
"""An optimizer's step on fake tensors, on the float32 weights it would see: what it keeps, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatwise.errors import BadInputError
from floatwise.rehearse.memory_states import optimizer_slots
from floatwise.torch.masters import granularity_of

__all__ = ["fake_update", "slots_of", "stretch_bytes"]

# As in `floatwise.torch.masters`: `step._ELEMENTS_AT_A_TIME`, and `fused`'s two buffers.
_ELEMENTS_AT_A_TIME = 2**22
_CPU_STRETCH, _DEVICE_STRETCH = 2**18, 2**25


def fake_update(
    optimizer: Optimizer, stored: list[Tensor], device_type: str, beside: AbstractContextManager[Any]
) -> list[Tensor]:
    """Steps a fake optimizer twice, the first time to make its states, which it returns.

    Parameters stored in 16 bits are stepped as `MasterWeights` does it: float32 stand-ins take their places, a few at
    a time or all of them. Those that it takes by stretches are left out; see `stretch_bytes`.

    Args:
      optimizer: Of fake parameters that have gradients, without states.
      stored: Its parameters that are stored in 16 bits.
      device_type: Where the training is to run. On CUDA, PyTorch's default is the `foreach` implementation.
      beside: Open during the second step.

    Raises:
      BadInputError: The optimizer cannot step on fake tensors.
    """
    masters = {id(p) for p in stored}
    everything = [list(group["params"]) for group in optimizer.param_groups]
    if device_type == "cuda":
        for group in optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
    updated = [p for parameters in everything for p in parameters if p.grad is not None]
    low = [p for p in updated if id(p) in masters]
    granularity = granularity_of(optimizer)
    portions = [low] if granularity == "all" else [] if granularity == "part" else _portions(low)
    states = _stepped(optimizer, everything, {id(p): p for p in updated if id(p) not in masters}, beside)
    for portion in portions:
        states += _stepped(optimizer, everything, {id(p): _stand_in(p) for p in portion}, beside)
    return states


def stretch_bytes(optimizer: Optimizer, stored: list[Tensor], device_type: str) -> int:
    """Returns what stepping 16-bit weights by stretches takes: float32 values and gradients of one stretch."""
    elements = sum(p.numel() for p in stored if p.requires_grad)
    if not elements or granularity_of(optimizer) != "part":
        return 0
    return 8 * (_CPU_STRETCH if device_type == "cpu" else min(_DEVICE_STRETCH, elements))


def slots_of(optimizer: Optimizer, states: Iterable[Tensor], updated: Iterable[Tensor]) -> float:
    """Returns how many numbers an optimizer keeps for each weight, by its class or else by its states."""
    known = optimizer_slots(type(optimizer).__name__, optimizer.param_groups[0])
    elements = sum(p.numel() for p in updated)
    if known is not None and type(optimizer).__module__.startswith("torch."):
        return known
    return sum(s.numel() for s in states) / elements if elements else 0.0


def _stepped(
    optimizer: Optimizer, everything: list[list[Tensor]], places: dict[int, Any], beside: AbstractContextManager[Any]
) -> list[Tensor]:
    if not places:
        return []
    for group, parameters in zip(optimizer.param_groups, everything, strict=True):
        group["params"][:] = [places[id(p)] for p in parameters if id(p) in places]
    try:
        optimizer.step()
        with beside:
            optimizer.step()
    except Exception as error:
        raise BadInputError(
            f"got {type(optimizer).__name__}, which cannot step on tensors without values ({error}); predict with "
            "one that keeps as much for each weight, such as SGD with momentum (1 number) or Adam (2)"
        ) from error
    finally:
        for group, parameters in zip(optimizer.param_groups, everything, strict=True):
            group["params"][:] = parameters
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    optimizer.state.clear()  # it has hold of the stand-ins
    return states


def _stand_in(parameter: Tensor) -> nn.Parameter:
    stand_in = nn.Parameter(torch.empty_like(parameter, dtype=torch.float32))
    stand_in.grad = torch.empty_like(stand_in)
    return stand_in


def _portions(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    portion: list[Tensor] = []
    for parameter in parameters:
        if portion and sum(p.numel() for p in (*portion, parameter)) > _ELEMENTS_AT_A_TIME:
            yield portion
            portion = []
        portion.append(parameter)
    if portion:
        yield portion
