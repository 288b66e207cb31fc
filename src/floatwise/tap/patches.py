# SPDX-License-Identifier: Apache-2.0
"""Reversible replacement of attributes: the one place where anything of a framework is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]

_MISSING = object()


class Patches:
    """A stack of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets `owner.name` to `make(original)`, the original being what `getattr` finds now."""
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, make(getattr(owner, name)))

        def undo() -> None:
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(undo)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Runs `action` when the patches are undone."""
        self._undo.append(action)

    def undo(self) -> None:
        """Puts everything back."""
        while self._undo:
            self._undo.pop()()
