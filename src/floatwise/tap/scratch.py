# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run that is only a trial: written aside, so that the user's own files stay as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from floatwise.tap.events import Found
from floatwise.tap.frames import users_line

if TYPE_CHECKING:
    from floatwise.tap.core import Tap

__all__ = ["keep_checkpoints_aside"]


def keep_checkpoints_aside(tap: Tap, folder: str) -> None:
    """Makes `torch.save` to a named file write into a temporary folder, and `torch.load` find it there.

    A file that was so saved can be renamed, over a checkpoint of the user's too, and removed.

    A trial trains a few steps, several times over; what it saves would replace what the user has trained for days.

    Args:
      tap: The open tap; each file is reported to its observers once.
      folder: Where to write instead; it exists.
    """
    aside: dict[str, str] = {}
    count = 0

    def save(original: Callable[..., Any]) -> Callable[..., Any]:
        def to_scratch(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if isinstance(f, (str, os.PathLike)):
                path = os.path.abspath(f)
                if path not in aside:
                    count += 1
                    aside[path] = os.path.join(folder, f"{os.getpid()}-{count}")
                    tap.report(Found("found_checkpoint", users_line() or "", os.fspath(f)))
                f = aside[path]
            return original(obj, f, *args, **kwargs)

        return to_scratch

    def load(original: Callable[..., Any]) -> Callable[..., Any]:
        def from_scratch(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                f = aside.get(os.path.abspath(f), f)
            return original(f, *args, **kwargs)

        return from_scratch

    def rename(original: Callable[..., Any]) -> Callable[..., Any]:
        def within_scratch(src: Any, dst: Any, **kwargs: Any) -> Any:
            place = aside.pop(_absolute(src), None)
            if place is None:
                return original(src, dst, **kwargs)
            aside[_absolute(dst)] = place
            return None

        return within_scratch

    def remove(original: Callable[..., Any]) -> Callable[..., Any]:
        def from_scratch(path: Any, **kwargs: Any) -> Any:
            return None if aside.pop(_absolute(path), None) is not None else original(path, **kwargs)

        return from_scratch

    tap.patches.replace(torch, "save", save)
    tap.patches.replace(torch, "load", load)
    for name, make in (("replace", rename), ("rename", rename), ("remove", remove), ("unlink", remove)):
        tap.patches.replace(os, name, make)


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
