# SPDX-License-Identifier: Apache-2.0
"""An observer that writes down what it hears."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from floatwise.tap.events import Found, Observer
from floatwise.tap.operators import ARITHMETIC_OPERATORS

__all__ = ["Listener"]


class Listener(Observer):
    """Keeps every event as a tuple: its name first, then what tells it from others.

    Args:
      inspects_values: Also hear of modules and operators.
    """

    def __init__(self, inspects_values: bool = True) -> None:
        self.inspects_values = inspects_values
        self.events: list[tuple[Any, ...]] = []

    @property
    def names(self) -> list[str]:
        """The names of the events alone."""
        return [event[0] for event in self.events]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Returns what is told of each event of one name."""
        return [event[1:] for event in self.events if event[0] == name]

    @override
    def root_entered(self, root: nn.Module, args: Any, kwargs: Any) -> Any:
        self.events.append(("root_entered", type(root).__name__))
        return args, kwargs

    @override
    def root_left(self, root: nn.Module, output: Any) -> Any:
        self.events.append(("root_left", type(root).__name__))
        return output

    @override
    def root_failed(self, root: nn.Module) -> None:
        self.events.append(("root_failed", type(root).__name__))

    @override
    def script_region_entered(self, device_type: str) -> None:
        self.events.append(("script_region_entered", device_type))

    @override
    def script_region_left(self) -> None:
        self.events.append(("script_region_left",))

    @override
    def module_called(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        self.events.append(("module_called", path))

    @override
    def operator_called(
        self, site: str, operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if operator in ARITHMETIC_OPERATORS.values():
            return  # every sum of a model: see test_operators
        self.events.append(("operator_called", site, operator))

    @override
    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        self.events.append(("backward_starts", len(roots)))
        return roots

    @override
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        self.events.append(("backward_ended", len(roots)))

    @override
    def backward_failed(self) -> None:
        self.events.append(("backward_failed",))

    @override
    def step_starts(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.events.append(("step_starts", _kind(optimizer)))

    @override
    def closure_wrapped(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        self.events.append(("closure_wrapped",))
        return closure

    @override
    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.events.append(("step_ended", _kind(optimizer)))

    @override
    def found(self, what: Found) -> None:
        self.events.append(("found", what.kind, what.detail))


def _kind(optimizer: torch.optim.Optimizer | None) -> str:
    return "by hand" if optimizer is None else type(optimizer).__name__
