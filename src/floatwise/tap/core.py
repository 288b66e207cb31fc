# SPDX-License-Identifier: Apache-2.0
"""The tap: while it is open, observers hear what training code does, whoever wrote the loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from floatwise.tap.backward import BackwardTap
from floatwise.tap.events import Found, Observer
from floatwise.tap.modules import ModuleTap
from floatwise.tap.operators import OperatorTap
from floatwise.tap.patches import Patches
from floatwise.tap.paths import ModulePaths
from floatwise.tap.steps import StepTap

__all__ = ["Tap", "attach"]


class Tap:
    """Listens to module calls, backward passes and optimizer steps of this process.

    Python's own attribute replacement on `torch.nn.Module.__call__` and `torch.autograd.backward`, and PyTorch's
    global optimizer hooks: these see keyword arguments and dictionary outputs, cost nothing under `torch.compile`
    (which inlines them), and work for any loop.

    Args:
      observers: Called in this order for every event.
      paths: Names modules; shared with observers that need names themselves.
    """

    def __init__(self, observers: Sequence[Observer], paths: ModulePaths | None = None) -> None:
        self.observers = tuple(observers)
        self.paths = paths or ModulePaths()
        self.patches = Patches()
        self.inspects_values = any(o.inspects_values for o in self.observers)
        self.local = threading.local()
        self.modules = ModuleTap(self)
        self.backward = BackwardTap(self)
        self.steps = StepTap(self)
        self.operators: OperatorTap | None = None
        self._stack = ExitStack()
        self._process = os.getpid()

    def __enter__(self) -> Tap:
        # A module's call passes through two or three functions of ours: deep models need as much more room.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(4 * limit)
        self.patches.on_undo(lambda: sys.setrecursionlimit(limit))
        self.modules.install()
        self.backward.install()
        self.steps.install()
        if self.inspects_values:
            self.operators = OperatorTap(self)
            self._stack.enter_context(self.operators)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self.patches.undo()

    def is_elsewhere(self) -> bool:
        """True in a process forked from the one being watched (a DataLoader worker)."""
        return os.getpid() != self._process

    def report(self, what: Found) -> None:
        """Tells every observer about something found."""
        for observer in self.observers:
            observer.found(what)


def attach(*observers: Observer) -> Tap:
    """Returns a tap to use as a context manager around a training loop of your own."""
    return Tap(observers)
