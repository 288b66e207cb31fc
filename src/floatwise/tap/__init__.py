# SPDX-License-Identifier: Apache-2.0
"""The tap: runs or attaches to training code and tells observers what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatwise.tap.core import Tap, attach
    from floatwise.tap.events import Found, Observer

__all__ = ["Found", "Observer", "Tap", "attach"]


def __getattr__(name: str) -> Any:
    # Late, so that starting a child (`floatwise.tap.launch`) needs no framework in the parent.
    if name in ("Tap", "attach"):
        from floatwise.tap import core

        return getattr(core, name)
    if name in ("Found", "Observer"):
        from floatwise.tap import events

        return getattr(events, name)
    raise AttributeError(f"module 'floatwise.tap' has no attribute {name!r}")
