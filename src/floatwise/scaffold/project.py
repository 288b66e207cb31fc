# SPDX-License-Identifier: Apache-2.0
"""Writing a project: all of its files, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from floatwise.errors import BadInputError

__all__ = ["check_folder", "write_project"]


def check_folder(folder: Path) -> None:
    """Checks that a project can be written to `folder`: it is empty, or can be made.

    Raises:
      BadInputError: It is a file, or holds something, or cannot be written.
    """
    if folder.is_symlink() and not folder.exists():
        raise BadInputError(f"{folder}: a link that leads nowhere; name another folder")
    if folder.exists() and not folder.is_dir():
        raise BadInputError(f"{folder}: a file stands where the folder would be written; name another folder")
    if folder.is_dir():
        held = sorted(path.name for path in folder.iterdir())
        if held:
            shown = ", ".join(held[:3]) + (" …" if len(held) > 3 else "")
            raise BadInputError(f"{folder}: the folder is not empty ({shown}); name a new one, or empty it first")
    existing = _existing_parent(folder)
    if not existing.is_dir():
        raise BadInputError(f"{folder}: {existing} is a file, not a folder; name another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInputError(f"{folder}: nothing can be written in {existing}; name another place")


def write_project(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Writes the files to `folder`, which is made; it holds all of them or none at any time.

    They are written to a temporary folder beside it, which is then renamed.

    Args:
      folder: A folder that is empty or does not exist.
      files: Text by file name.

    Returns:
      The paths of the files, in the order given.

    Raises:
      BadInputError: The folder is not empty or cannot be written.
    """
    target = Path(os.path.realpath(folder))
    check_folder(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_beside(target, files)
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be written: {error.strerror or error}; name another place") from None
    return [folder / name for name in files]


def _write_beside(target: Path, files: Mapping[str, str]) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, text in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        temporary.chmod(0o777 & ~_umask())
        if target == Path.cwd():
            # The working folder keeps its identity: what stands in it is moved in, file by file.
            for path in sorted(temporary.iterdir()):
                os.replace(path, target / path.name)
        else:
            if target.is_dir():
                target.rmdir()  # only an empty one can go, so nothing of others is lost
            os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _existing_parent(folder: Path) -> Path:
    path = folder.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
