# SPDX-License-Identifier: Apache-2.0
"""The few ways in which detection looks at a machine, so that a recorded one can stand in for this one."""

from __future__ import annotations

import glob
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Machine"]

# nvidia-smi takes a few seconds per GPU where the driver is not kept loaded: convention, with room.
_TIMEOUT_SECONDS = 20.0


def _read_file(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _run_command(arguments: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _list_paths(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern))


@dataclass(frozen=True)
class Machine:
    """Reads files, runs tools and lists paths of one machine; the defaults are this machine's.

    Attributes:
      read_file: Text of a file, None when it cannot be read.
      run_command: Standard output of a tool; None when it is missing, hangs or fails.
      list_paths: Paths that match a pattern, in order.
      environment: Environment variables.
      system: As `platform.system()` says.
      architecture: As `platform.machine()` says.
    """

    read_file: Callable[[str], str | None] = _read_file
    run_command: Callable[[Sequence[str]], str | None] = _run_command
    list_paths: Callable[[str], list[str]] = _list_paths
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    system: str = field(default_factory=platform.system)
    architecture: str = field(default_factory=platform.machine)
