# SPDX-License-Identifier: Apache-2.0
"""Parameter updates: by any `torch.optim` optimizer, or by hand."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from floatwise.tap.backward import leaves_of
from floatwise.tap.tensors import values_are_real

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

__all__ = ["StepTap", "is_nested_step"]

#: Values of how many parameters, and how many of each, are compared to notice an update by hand.
_COMPARED_PARAMETERS, _COMPARED_VALUES = 8, 64


class StepTap:
    """Hears optimizer steps through PyTorch's global hooks.

    A script that updates its parameters without a torch optimizer steps where its parameters have changed
    between one backward pass and the next forward or backward pass.
    """

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self._optimizer_seen = False
        self._leaves: list[Tensor] = []
        self._values: list[Tensor] | None = None

    def install(self) -> None:
        """Registers the hooks until the tap's patches are undone."""
        pre = register_optimizer_step_pre_hook(self._before_step)
        post = register_optimizer_step_post_hook(self._after_step)
        self.tap.patches.on_undo(pre.remove)
        self.tap.patches.on_undo(post.remove)

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Notices an update since the last backward pass, and finds the parameters of this one."""
        self.notice_update_by_hand()
        if not self._optimizer_seen and not self._leaves and values_are_real():
            leaves = (p for p in leaves_of(roots) if p.layout is torch.strided and not p.is_meta)
            self._leaves = list(itertools.islice(leaves, _COMPARED_PARAMETERS))

    def after_backward(self) -> None:
        """Keeps a few values, to compare when training goes on."""
        if not self._optimizer_seen:
            self._leaves = [leaf for leaf in self._leaves if _has_values(leaf)]
            self._values = [_few_values(leaf) for leaf in self._leaves]

    def notice_update_by_hand(self) -> None:
        """Reports a step when the kept values have changed."""
        if self._optimizer_seen or self._values is None or getattr(self.tap.local, "in_backward", False):
            return
        if not all(map(_has_values, self._leaves)):
            return
        now = [_few_values(leaf) for leaf in self._leaves]
        if any(not torch.equal(a, b) for a, b in zip(self._values, now, strict=True)):
            self._values = None
            for observer in self.tap.observers:
                observer.step_starts(None)
            for observer in self.tap.observers:
                observer.step_ended(None)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.tap.is_elsewhere() or is_nested_step(optimizer):
            return None
        self._optimizer_seen = True
        with_closure = self._with_wrapped_closure(args, kwargs)
        for observer in self.tap.observers:
            observer.step_starts(optimizer)
        return with_closure

    def _with_wrapped_closure(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None
        wrapped: Callable[[], Any] = closure
        for observer in self.tap.observers:
            wrapped = observer.closure_wrapped(wrapped)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.tap.is_elsewhere() or is_nested_step(optimizer):
            return
        for observer in self.tap.observers:
            observer.step_ended(optimizer)


def is_nested_step(optimizer: Optimizer) -> bool:
    """Returns, in a hook of a step, whether a step of the same optimizer is around it: `super().step()`.

    PyTorch wraps the step of each class by itself. The frames tell, and need no account that an exception could upset.
    """
    wrappers = 0
    frame = sys._getframe(1)
    while frame is not None and wrappers < 2:
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == "torch.optim.optimizer":
            wrappers += frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return wrappers > 1


def _has_values(leaf: Tensor) -> bool:
    """False for what FSDP gathered for the pass and has freed since."""
    flat = leaf.detach()
    flat = flat.to_local() if hasattr(flat, "to_local") else flat
    return flat.numel() == 0 or flat.untyped_storage().size() > 0


def _few_values(leaf: Tensor) -> Tensor:
    flat = leaf.detach()
    flat = flat.to_local() if hasattr(flat, "to_local") else flat
    flat = flat.reshape(-1)
    return flat[:: max(1, flat.numel() // _COMPARED_VALUES)].clone()
