# SPDX-License-Identifier: Apache-2.0
"""An optimizer that holds float32 stand-ins of 16-bit parameters for the length of a step, whatever optimizer it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from floatwise.errors import BadInputError
from floatwise.torch.masters.flat import cast, flat, laid_out_as, local, replace_data, sharded_as
from floatwise.torch.masters.gradients import float32_grad
from floatwise.torch.masters.registry import float32_value, stored_of

__all__ = ["StandIns", "only_these"]

# Where a DTensor keeps what it is, among the attributes that users and optimizers set on a parameter.
_OF_DTENSOR = ("_local_tensor", "_spec")


class StandIns:
    """Float32 stand-ins of parameters, with their gradients and optimizer states, in the parameters' places.

    Args:
      optimizer: Holds the parameters.
      kept: The stand-ins that parameters have had before, to be used again: an optimizer inside the optimizer may
        know them. Between steps they are empty.
    """

    def __init__(self, optimizer: Optimizer, kept: WeakIdKeyDictionary | None = None) -> None:
        self._optimizer = optimizer
        self._kept = kept
        self._pairs: list[_Pair] = []

    def take_places(self, parameters: Iterable[Tensor]) -> None:
        """Puts stand-ins where the parameters are, each of which has a master."""
        self._pairs = [_Pair(p, self._stand_in(p)) for p in parameters]
        for pair in self._pairs:
            self._move_state(pair.parameter, pair.stand_in)
        self._swap({id(pair.parameter): pair.stand_in for pair in self._pairs})

    def give_back(self) -> None:
        """Puts the parameters back, with the stand-ins' values, gradients and states.

        Raises:
          BadInputError: The optimizer changed the parameters themselves.
        """
        pairs = self._pairs
        # Whatever this is interrupted at, doing it again ends it: groups and states first, then the values.
        self._swap({id(pair.stand_in): pair.parameter for pair in pairs})
        for pair in pairs:
            self._move_state(pair.stand_in, pair.parameter)
        for pair in pairs:
            pair.give_back()
        self._pairs = []
        if any(pair.was_bypassed for pair in pairs):
            raise BadInputError(
                f"got {type(self._optimizer).__name__}, which updates parameters that it has not from its "
                "param_groups, where master weights cannot follow; let its step() take them from self.param_groups"
            )

    def around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a closure that evaluates the loss at the stand-ins' values, with the parameters in their places."""

        def evaluate() -> Any:
            self._swap({id(pair.stand_in): pair.parameter for pair in self._pairs})
            with torch.no_grad():
                for pair in self._pairs:
                    pair.show_value()
            try:
                with torch.enable_grad():
                    loss = closure()
            finally:
                for pair in self._pairs:
                    pair.take_grad()
                self._swap({id(pair.parameter): pair.stand_in for pair in self._pairs})
            return loss

        return evaluate

    def _stand_in(self, parameter: Tensor) -> nn.Parameter:
        value = float32_value(parameter)
        stand_in: nn.Parameter | None = None if self._kept is None else self._kept.get(parameter)
        if stand_in is None:
            stand_in = nn.Parameter(value)
            if self._kept is not None:
                self._kept[parameter] = stand_in
        else:
            replace_data(stand_in, value)
        stand_in.requires_grad_(parameter.requires_grad)
        # What optimizers look for: `no_decay`, a name.
        stand_in.__dict__.update({k: v for k, v in vars(parameter).items() if k not in _OF_DTENSOR})
        return stand_in

    def _swap(self, by: dict[int, Any]) -> None:
        for group in self._optimizer.param_groups:
            # In place: LBFGS, for one, keeps the list itself.
            group["params"][:] = [by.get(id(p), p) for p in group["params"]]

    def _move_state(self, old: Tensor, new: Tensor) -> None:
        if old in self._optimizer.state:
            self._optimizer.state[new] = self._optimizer.state.pop(old)


class _Pair:
    """A parameter and its stand-in."""

    def __init__(self, parameter: Tensor, stand_in: nn.Parameter) -> None:
        self.parameter, self.stand_in = parameter, stand_in
        self.was_bypassed = self._is_back = False
        self._memory = local(stand_in).data_ptr()
        self._value_version = stand_in._version
        self.take_grad()

    def take_grad(self) -> None:
        """Gives the stand-in the parameter's gradient."""
        self._grad = self.stand_in.grad = float32_grad(self.parameter)
        self._grad_version = 0 if self._grad is None else self._grad._version
        self._note_parameter()

    def show_value(self) -> None:
        """Gives the parameter the stand-in's present value, which the stand-in keeps."""
        self._write(local(self.stand_in).clone())

    def give_back(self) -> None:
        """Gives the parameter value and gradient; the stand-in is used up."""
        if self._is_back:
            return
        self.was_bypassed = local(self.parameter)._version != self._parameter_version
        self._give_grad()
        value = local(self.stand_in)
        # An optimizer may have put a tensor of its own state in place; writing would use that up.
        self._write(value if value.data_ptr() == self._memory else value.clone())
        self._is_back = True
        replace_data(self.stand_in, sharded_as(self.stand_in, value.new_empty(0)))

    def _write(self, value: Tensor) -> None:
        stored = stored_of(self.parameter)
        assert stored is not None
        weight, part = stored.weight(self.parameter), local(self.parameter)
        if value.shape != part.shape:
            raise BadInputError(
                f"got an optimizer that gives a parameter of shape {tuple(part.shape)} the shape {tuple(value.shape)}, "
                "where its master weights cannot follow; use it without master weights"
            )
        value = value if value.dtype is torch.float32 else cast(value, torch.float32)
        version, self._value_version = self._value_version, self.stand_in._version
        stored.master.write(flat(laid_out_as(part, value)), weight, 0, weight.numel())
        if version != self._value_version:
            torch.autograd.graph.increment_version(part)
        self._note_parameter()

    def _give_grad(self) -> None:
        """Passes on what was done to the gradient: SAM drops it, others normalise it."""
        grad, self.stand_in.grad = self.stand_in.grad, None
        if grad is None or self.parameter.grad is None:
            self.parameter.grad = None
        elif grad is not self._grad or grad._version != self._grad_version:
            self.parameter.grad.copy_(grad)
        self._grad = None

    def _note_parameter(self) -> None:
        self._parameter_version = local(self.parameter)._version


@contextmanager
def only_these(optimizer: Optimizer, parameters: Iterable[Tensor]) -> Iterator[None]:
    """Leaves an optimizer nothing but `parameters` within the block."""
    chosen = {id(p) for p in parameters}
    before: Sequence[list[Any]] = [list(group["params"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"][:] = [p for p in group["params"] if id(p) in chosen]
    try:
        yield
    finally:
        for group, parameters_before in zip(optimizer.param_groups, before, strict=True):
            group["params"][:] = parameters_before
