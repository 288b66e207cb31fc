# SPDX-License-Identifier: Apache-2.0
"""A C file compiled at its first use on a machine, and kept in the user's cache folder.

What is loaded runs with the user's rights. So a kept library is used only when nobody else can have written it (folder
and file belong to this user, and others may not write to them) and when it is whole: its name has the digest of its
content. Otherwise the file is compiled again, for this process alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

__all__ = ["cache_folder", "load_compiled"]

# The first that compiles, links and loads is taken. OpenMP is compiled in but not linked: its functions are found in
# the library that PyTorch has loaded, whose threads are then shared.
_OPTIONS = (
    ("-O3", "-march=native", "-fopenmp"),
    ("-O3", "-march=native"),
    ("-O3",),
)
_ALWAYS = ("-fPIC", "-std=c99")

# Chosen: a hundred times what it takes. A compiler that waits for something (a licence, a network) must not be waited
# for.
_COMPILE_SECONDS = 20

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def load_compiled(source: Path, *options: str) -> ctypes.CDLL | None:
    """Returns the library compiled from a C file; None where there is no kept one and it cannot be compiled.

    Args:
      source: The file.
      options: Of the compiler, beside those for speed.
    """
    name = f"{source.stem}-{_key(source, options)}"
    folder = _private_folder()
    try:
        kept = _kept(folder, name) if folder is not None else None
        return kept or _compiled(source, options, name, folder)
    except (OSError, subprocess.SubprocessError):
        return None


def cache_folder() -> Path:
    """Returns where compiled libraries are kept.

    Raises:
      RuntimeError: The user has no home folder.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))  # one that is relative is to be ignored
    return (root if root.is_absolute() else Path.home() / ".cache") / "floatwise" / "compiled"


def _key(source: Path, options: Sequence[str]) -> str:
    """Returns what tells apart libraries that must not be taken for each other."""
    parts = (repr((_OPTIONS, _ALWAYS, options)), platform.machine(), _processor(), torch.__version__)
    return hashlib.sha256(source.read_bytes() + "\n".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Returns what tells one kind of processor from another: a home folder may serve several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines[:64] if line.startswith(("model name", "flags", "Features")))


def _private_folder() -> Path | None:
    """Returns the cache folder, made if need be; None when there is none, or somebody else could put a file there."""
    try:
        folder = cache_folder()
        for made in (folder.parent, folder):  # `parents=True` makes the others as the umask says
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        if not os.access(folder, os.W_OK | os.X_OK) or not _is_own(folder.stat()):
            return None
        # Whoever may write to a folder above can move this one away and put another in its place, unless the folder
        # lets everyone move their own only (`/tmp`).
        above = [parent.stat().st_mode for parent in folder.parents]
    except (OSError, RuntimeError):
        return None
    return None if any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above) else folder


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE


def _kept(folder: Path, name: str) -> ctypes.CDLL | None:
    for library in sorted(folder.glob(f"{name}-*.so")):
        try:
            with library.open("rb") as file:
                is_own, content = _is_own(os.fstat(file.fileno())), file.read()
            if is_own and library.name == _named(name, content):
                return ctypes.CDLL(str(library))
        except OSError:
            continue
    return None


def _named(name: str, content: bytes) -> str:
    return f"{name}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _compiled(source: Path, more: Sequence[str], name: str, folder: Path | None) -> ctypes.CDLL | None:
    compiler = _compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for options in _OPTIONS:
            built = Path(temporary) / f"{len(options)}.so"
            try:
                _compile([*compiler, *_ALWAYS, *more, *options], source, built)
                library = ctypes.CDLL(str(built))
            except (OSError, subprocess.CalledProcessError):
                continue
            if folder is not None:
                _keep(built, folder, name)
            return library
    return None


def _keep(built: Path, folder: Path, name: str) -> None:
    with suppress(OSError):
        built.chmod(0o700)
        # Whole or not at all; another process may have put the same there.
        os.replace(built, folder / _named(name, built.read_bytes()))


def _compiler() -> list[str] | None:
    try:
        command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError:  # a quotation mark without its partner
        return None
    found = shutil.which(command[0])
    return None if found is None else [found, *command[1:]]


def _compile(command: list[str], source: Path, built: Path) -> None:
    unlinked = built.with_suffix(".o")
    compiling: list[str | Path] = [*command, "-c", source, "-o", unlinked]
    linking: list[str | Path] = [command[0], "-shared", unlinked, "-o", built]
    for arguments in (compiling, linking):
        subprocess.run(arguments, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_COMPILE_SECONDS)
