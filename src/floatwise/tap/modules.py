# SPDX-License-Identifier: Apache-2.0
"""Module calls: the outermost ones for whoever applies a plan, every one for whoever inspects values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from floatwise.tap.tensors import values_are_real

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

__all__ = ["Frame", "ModuleTap"]


@dataclass
class Frame:
    """One running module (None outside of any) and how often it has called each watched operator."""

    module: nn.Module | None
    operator_calls: dict[str, int] = field(default_factory=dict)


class ModuleTap:
    """Replaces `torch.nn.Module.__call__`; keeps the stack of modules that are running in each thread."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    def install(self) -> None:
        """Puts the replacement in place until the tap's patches are undone."""

        def make(original: Any) -> Any:
            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or self.tap.is_elsewhere():
                    return original(module, *args, **kwargs)
                return self._call(original, module, args, kwargs)

            return call

        self.tap.patches.replace(nn.Module, "__call__", make)

    def frame(self) -> Frame:
        """Returns the innermost running module's frame in this thread; outside of modules, the script's."""
        return self._stack()[-1]

    def forget_script_calls(self) -> None:
        """Counts the operators called outside of modules from one again: a new training step begins."""
        self._stack()[0].operator_calls.clear()

    def _stack(self) -> list[Frame]:
        stack: list[Frame] | None = getattr(self.tap.local, "stack", None)
        if stack is None:
            stack = self.tap.local.stack = [Frame(None)]
        return stack

    def _call(self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What checkpointing computes again within a backward pass, in whatever thread, was outermost in the forward
        # or was not: it runs as it did then, and checkpointing itself brings back autocast's state.
        if len(self._stack()) == 1 and torch._C._current_graph_task_id() == -1:
            return self._call_root(original, module, args, kwargs)
        if not self.tap.inspects_values:
            return original(module, *args, **kwargs)
        return self._call_inspected(original, module, args, kwargs)

    def _call_root(self, original: Any, root: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        observers = self.tap.observers
        self.tap.steps.notice_update_by_hand()
        self.tap.paths.of(root)  # models are named in the order they come, whoever listens
        for observer in observers:
            args, kwargs = observer.root_entered(root, args, kwargs)
        try:
            output = self._call_inspected(original, root, args, kwargs)
        except BaseException:
            for observer in observers:
                observer.root_failed(root)
            raise
        for observer in observers:
            output = observer.root_left(root, output)
        return output

    def _call_inspected(self, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        stack = self._stack()
        stack.append(Frame(module))
        try:
            output = original(module, *args, **kwargs)
        finally:
            stack.pop()
        if self.tap.inspects_values and torch.is_grad_enabled() and values_are_real():
            path = self.tap.paths.of(module)
            for observer in self.tap.observers:
                observer.module_called(path, module, args, kwargs, output)
        return output
