# SPDX-License-Identifier: Apache-2.0
"""Something done right after the script has imported a library, which it may set up before it does so."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from floatwise.tap.patches import Patches

__all__ = ["when_imported"]


def when_imported(patches: Patches, name: str, action: Callable[[], None]) -> None:
    """Calls `action` once, as soon as the module `name` has been imported; at once when it already is.

    A script may choose Keras' backend by an environment variable before its first import, so Keras must not be imported
    for it. Several actions for one module run in the order in which they were given.

    Args:
      patches: Takes the watch away when they are undone.
      name: A top-level module.
      action: What to do.
    """
    if name in sys.modules:
        action()
        return
    watch = next((finder for finder in sys.meta_path if isinstance(finder, _Watch) and finder.name == name), None)
    if watch is None:
        watch = _Watch(name)
        sys.meta_path.insert(0, watch)
    watch.actions.append(action)
    patches.on_undo(lambda: watch.forget(action))


class _Watch(importlib.abc.MetaPathFinder):
    def __init__(self, name: str) -> None:
        self.name = name
        self.actions: list[Callable[[], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Acting(spec.loader, self)
        return spec

    def forget(self, action: Callable[[], None]) -> None:
        if action in self.actions:
            self.actions.remove(action)
        if not self.actions and self in sys.meta_path:
            sys.meta_path.remove(self)

    def act(self) -> None:
        actions, self.actions = self.actions, []
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for action in actions:
            action()


class _Acting(importlib.abc.Loader):
    """The module's own loader, and then the actions."""

    def __init__(self, loader: importlib.abc.Loader, watch: _Watch) -> None:
        self.loader, self.watch = loader, watch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.watch.act()
