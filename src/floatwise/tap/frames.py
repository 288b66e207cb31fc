# SPDX-License-Identifier: Apache-2.0
"""Which lines are the user's: call sites for findings, and tracebacks trimmed to them."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from types import FrameType, TracebackType

__all__ = ["is_users_file", "last_users_line", "trimmed_text", "trimmed_traceback", "users_line"]

_FLOATWISE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    {os.path.abspath(sysconfig.get_paths()[k]) + os.sep for k in ("stdlib", "platstdlib", "purelib", "platlib")}
)
#: The first line of a frame in a formatted traceback.
_FRAME = re.compile(r' +File "(.+)", line \d+')


def is_users_file(filename: str) -> bool:
    """True for source that is neither Python's, an installed package's, nor ours."""
    if not filename or filename.startswith("<"):
        return False
    path = os.path.abspath(filename)
    return not (path.startswith(_FLOATWISE) or path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path)


def users_line() -> str | None:
    """Returns `path:line` of the innermost frame that is the user's, relative to the working directory.

    It is empty where no frame is, and None while a library is being imported: what that does is not the script's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return None
        frame = frame.f_back
    return ""


def trimmed_traceback(error: BaseException) -> str:
    """Formats `error` with the user's frames alone; the last library frame stays when none is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if is_users_file(f.filename)]
    head = "Traceback (your code's frames):\n" if mine else ""
    body = "".join(traceback.format_list(mine or frames[-1:]))
    return head + body + "".join(traceback.format_exception_only(type(error), error))


def trimmed_text(text: str) -> str:
    """Returns a text with the tracebacks in it trimmed to the user's frames."""
    kept, keeps = [], True
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame:
            keeps = is_users_file(frame[1])
        elif not line.startswith("    "):
            keeps = True
        if keeps:
            kept.append(line.replace("Traceback (most recent call last):", "Traceback (your code's frames):"))
    return "\n".join(kept)


def last_users_line(tb: TracebackType | None) -> str:
    """Returns `path:line` of the deepest user's frame of a traceback, or an empty string."""
    mine = [f for f in traceback.extract_tb(tb) if is_users_file(f.filename)]
    return f"{_shown(mine[-1].filename)}:{mine[-1].lineno}" if mine else ""


def _shown(filename: str) -> str:
    path = os.path.abspath(filename)
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
