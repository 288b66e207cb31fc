# SPDX-License-Identifier: Apache-2.0
"""What the tap says about running training code: an observer overrides the events it wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["Found", "Observer"]


@dataclass(frozen=True)
class Found:
    """Something the script already does that bears on precision.

    Attributes:
      kind: One of the codes in `floatwise.planner.finding_texts` that begin with `found_`.
      where: `path:line` of the user's own line, or empty.
      detail: What was asked for there ("bfloat16", "mixed_precision='fp16'").
    """

    kind: str
    where: str
    detail: str


class Observer:
    """Base of everything that listens to the tap; each method is one event and does nothing here.

    An event may arrive in any thread that runs training code, never in a DataLoader worker.
    """

    #: True when module outputs, operators and gradients are wanted: they cost time.
    inspects_values = False

    def root_entered(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """An outermost module is about to run; returns the arguments it gets."""
        return args, kwargs

    def root_left(self, root: nn.Module, output: Any) -> Any:
        """An outermost module has returned; returns the output its caller gets."""
        return output

    def root_failed(self, root: nn.Module) -> None:
        """An outermost module has raised."""

    def script_region_entered(self, device_type: str) -> None:
        """The script has entered an autocast region of its own (only when its precision is replaced)."""

    def script_region_left(self) -> None:
        """The script has left it."""

    def module_called(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """A module has run forward with gradients enabled (only when `inspects_values`)."""

    def operator_called(
        self, site: str, operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """A matrix product, convolution, softmax or loss has run (only when `inspects_values`)."""

    def backward_starts(self, roots: Sequence[Tensor]) -> Sequence[Tensor]:
        """A backward pass begins from `roots`; returns the tensors it really begins from."""
        return roots

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        """The backward pass is over; `roots` are the script's own, as in `backward_starts`."""

    def backward_failed(self) -> None:
        """The backward pass has raised."""

    def step_starts(self, optimizer: torch.optim.Optimizer | None) -> None:
        """An optimizer is about to update; None is the script's own update by hand."""

    def closure_wrapped(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """An optimizer step that is about to start was given a closure; returns the closure it gets."""
        return closure

    def step_ended(self, optimizer: torch.optim.Optimizer | None) -> None:
        """The update is done."""

    def found(self, what: Found) -> None:
        """The script already does something about precision."""
