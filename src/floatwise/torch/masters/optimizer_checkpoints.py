# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state dict with parameters in 16 bits: its states stay float32, and what else a resume needs is in it.

PyTorch casts the states that it loads to the format of the parameter. Hooks of the optimizer, also of one that the
user goes on using beside `MasterWeights`, put back what was saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from floatwise.torch.masters.registry import SIXTEEN_BIT, float32_value, set_float32_value, stored_of
from floatwise.torch.masters.step import MasterStep

__all__ = ["keep_states_float32", "raise_states"]

#: Beside `state` and `param_groups`, where a plain optimizer passes over it: the float32 values, by a parameter's
#: number, of those that the model's own state dict gives in 16 bits.
_KEY = "master_weights"


class _Checkpoints:
    def __init__(self, stepping: MasterStep) -> None:
        self._stepping = stepping
        self._loading: dict[str, Any] = {}

    def saving(self, optimizer: Optimizer) -> None:
        self._stepping.recover()

    def saved(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        with_master = [(i, p, s) for i, p in _numbered(optimizer) if (s := stored_of(p)) is not None]
        if with_master:
            state[_KEY] = {i: float32_value(p) for i, p, s in with_master if not s.in_checkpoints}

    def loads(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        self._stepping.recover()
        self._loading = state

    def loaded(self, optimizer: Optimizer) -> None:
        state, self._loading = self._loading, {}
        values = state.get(_KEY, {})
        indices = [index for group in state["param_groups"] for index in group["params"]]
        are_exact = True
        for (_, parameter), index in zip(_numbered(optimizer), indices, strict=True):
            stored = stored_of(parameter)
            if stored is None:
                continue
            if isinstance(values.get(index), Tensor):
                set_float32_value(parameter, values[index])
            else:
                are_exact &= stored.in_checkpoints
            if parameter in optimizer.state:
                optimizer.state[parameter] = _as_saved(optimizer.state[parameter], state["state"][index])
        if _KEY not in state:  # of an optimizer without masters, whose states had the format of its parameters
            raise_states(optimizer)
        if not are_exact:
            warnings.warn(
                "the loaded optimizer state has no float32 values of the weights, which go on from the 16-bit ones; "
                "give MasterWeights(..., model=model), so that the model's state dict has them",
                stacklevel=4,
            )


def keep_states_float32(stepping: MasterStep) -> list[RemovableHandle]:
    """Hooks an optimizer's `state_dict` and `load_state_dict`; returns handles that undo it."""
    hooks, optimizer = _Checkpoints(stepping), stepping.optimizer
    return [
        optimizer.register_state_dict_pre_hook(hooks.saving),
        optimizer.register_state_dict_post_hook(hooks.saved),
        optimizer.register_load_state_dict_pre_hook(hooks.loads),
        optimizer.register_load_state_dict_post_hook(hooks.loaded),
    ]


def raise_states(optimizer: Optimizer) -> None:
    """Makes the states of parameters with masters float32, where steps were taken before there were masters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state and stored_of(parameter) is not None:
                state = optimizer.state[parameter] = _raised(optimizer.state[parameter])
                _start_as_given(group, state)


def _start_as_given(group: dict[str, Any], state: dict[str, Any]) -> None:
    """Restores Adagrad's first sum, which it makes with the parameters, before any step."""
    start = group.get("initial_accumulator_value")
    if start and isinstance(state.get("sum"), Tensor) and not float(state.get("step", 1)):
        state["sum"].fill_(start)


def _raised(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.float() if state.dtype in SIXTEEN_BIT else state
    return _map(_raised, state)


def _as_saved(loaded: Any, saved: Any) -> Any:
    """Returns what was loaded, with tensors in the formats they were saved in."""
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor):
        return loaded if loaded.dtype is saved.dtype else saved.to(device=loaded.device, copy=True)
    return _map(_as_saved, loaded, saved)


def _map(function: Any, value: Any, *others: Any) -> Any:
    """Returns a container with a function of each item and of what is in its place in the others; else the value."""
    if isinstance(value, dict):
        return type(value)((k, function(v, *(other[k] for other in others))) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(function(*items) for items in zip(value, *others, strict=True))
    return value


def _numbered(optimizer: Optimizer) -> Iterator[tuple[int, Tensor]]:
    """Yields the parameters as `state_dict` numbers them."""
    numbers: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield numbers.setdefault(id(parameter), len(numbers)), parameter
