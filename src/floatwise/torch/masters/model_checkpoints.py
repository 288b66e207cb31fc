# SPDX-License-Identifier: Apache-2.0
"""A model's state dict in float32 while its weights are stored in 16 bits: what goes out is what a float32 model has.

Copies and pickles of such a model are float32 models, too: a copy has no masters, so in 16 bits it would stand still
when it is trained or averaged.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.errors import BadInputError
from floatwise.torch.masters.flat import local, replace_data
from floatwise.torch.masters.registry import Stored, float32_value, set_float32_value, stored_of

__all__ = ["Float32Checkpoints", "float32_checkpoints"]

# The float32 values that a state dict has been given, by parameter: tied weights share memory in it, too.
_given: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Float32Checkpoints:
    """Makes `state_dict` give float32 values and `load_state_dict` take them exactly, also for parts of a model.

    Args:
      model: The model; parameters that get masters later are served, too, in modules that have some now.
    """

    def __init__(self, model: nn.Module) -> None:
        self._handles: list[Any] = []
        self._stored: list[Stored] = []
        for module in model.modules():
            stored = [s for p in module.parameters(recurse=False) if (s := stored_of(p)) is not None]
            if not stored:
                continue
            if not any(isinstance(h, _ModuleHooks) and h.serves(module) for h in module._state_dict_hooks.values()):
                hooks = _ModuleHooks(module)
                self._handles.append(module.register_state_dict_post_hook(hooks))
                self._handles.append(module.register_load_state_dict_pre_hook(hooks.before_load))
                self._handles.append(module.register_load_state_dict_post_hook(hooks.after_load))
            self._stored += [s for s in stored if not s.in_checkpoints]
        for one in self._stored:
            one.in_checkpoints = True

    def remove(self) -> None:
        """Takes the hooks off again."""
        for handle in self._handles:
            handle.remove()
        for one in self._stored:
            one.in_checkpoints = False
        self._handles, self._stored = [], []


def float32_checkpoints(model: nn.Module) -> Float32Checkpoints:
    """Makes `state_dict` give float32 values and `load_state_dict` take them; `remove` of the result undoes it."""
    return Float32Checkpoints(model)


class _ModuleHooks:
    """The hooks of one module; called as the one that follows its `state_dict`."""

    def __init__(self, module: nn.Module | None) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._incoming: dict[str, Tensor] = {}

    def serves(self, module: nn.Module) -> bool:
        """Returns whether these are that module's own hooks, and not copied ones."""
        return self._module is not None and self._module() is module

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        for name, parameter in _with_masters(module):
            # `keep_vars=True` asks for the parameters themselves.
            if prefix + name in state and state[prefix + name] is not parameter:
                state[prefix + name] = _float32_in(state, parameter)

    def before_load(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, *_: Any) -> None:
        """Keeps what the module is being given, before it is rounded."""
        self._incoming = {
            name: state[prefix + name]
            for name, _ in _with_masters(module)
            if isinstance(state.get(prefix + name), Tensor)
        }
        if self._incoming and metadata.get("assign_to_params_buffers"):
            raise BadInputError(
                "got load_state_dict(assign=True), which replaces parameters that have master weights and that an "
                "optimizer holds; leave assign out, or load before the master weights are made"
            )

    def after_load(self, module: nn.Module, _: Any) -> None:
        """Sets the exact values."""
        incoming, self._incoming = self._incoming, {}
        for name, parameter in _with_masters(module):
            # A value of another shape was refused by `load_state_dict`, which says so itself.
            if name in incoming and incoming[name].shape == parameter.shape:
                set_float32_value(parameter, incoming[name])

    def __reduce__(self) -> Any:
        # Part of the module that is copied or pickled, and so the place to see to it that the copy is in float32.
        module = self._module() if self._module is not None else None
        parameters = [p for _, p in _with_masters(module)] if module is not None else []
        return _in_copy, (parameters, [float32_value(p) for p in parameters])


def _in_copy(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> _ModuleHooks:
    for parameter, value in zip(parameters, values, strict=True):
        if stored_of(parameter) is not None:
            set_float32_value(parameter, value)
        else:
            parameter.grad = None
            replace_data(parameter, value)
    return _ModuleHooks(None)


def _with_masters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if stored_of(parameter) is not None:
            yield name, parameter


def _float32_in(state: dict[str, Any], parameter: Tensor) -> Tensor:
    if not isinstance(state, OrderedDict):
        return float32_value(parameter)
    if state not in _given:
        _given[state] = WeakIdKeyDictionary()
    version = local(parameter)._version
    given_version, reference = _given[state].get(parameter, (None, None))
    value: Tensor | None = reference() if reference is not None and given_version == version else None
    if value is None:
        value = float32_value(parameter)
        _given[state][parameter] = version, weakref.ref(value)
    return value
