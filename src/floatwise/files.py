# SPDX-License-Identifier: Apache-2.0
"""Writing a file so that it holds either its old content or the whole new one at any time."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from floatwise.errors import BadInputError

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Writes a UTF-8 file; through a link, so that the link stays and its target is replaced.

    Args:
      path: Where to.
      text: The content; line ends stay as they are.
      what: What it is, for the error: "the plan".

    Raises:
      BadInputError: The file cannot be written there.
    """
    try:
        _replace(Path(os.path.realpath(path)), text.encode())
    except (OSError, ValueError) as error:
        # A ValueError comes from a path with a null character.
        why = getattr(error, "strerror", None) or error
        raise BadInputError(f"cannot write {what} to {os.fspath(path)}: {why}; {_remedy(Path(path))}") from None


def _replace(target: Path, data: bytes) -> None:
    if target.exists() and not target.is_file() and not target.is_dir():
        # A rename would put a file in the place of a device: of /dev/null, for all who use it.
        raise OSError("it is no ordinary file")
    temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _remedy(target: Path) -> str:
    if target.is_dir():
        return "name a file in that directory"
    if not target.parent.is_dir():
        return "make the directory first"
    return "name a place that can be written"
