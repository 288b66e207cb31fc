# SPDX-License-Identifier: Apache-2.0
"""Runs small programs against the real libraries, each in a process of its own: they set environments and warn."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["Failed", "free_port", "run_program", "run_torchrun"]

SECONDS = 240


class Failed(AssertionError):
    """The program ended with an error; the message is the end of what it printed."""


def run_program(code: str, folder: Path, *arguments: str, **environment: str) -> Any:
    """Runs Python source and returns what it printed last, read as JSON.

    Raises:
      Failed: It ended with an error.
    """
    return _run([sys.executable], code, folder, arguments, environment)


def run_torchrun(code: str, folder: Path, *arguments: str, processes: int = 2, **environment: str) -> list[Any]:
    """Runs Python source in several processes of one group (gloo) and returns what each found, by rank.

    A process writes its JSON into the file `result.<rank>` of its folder: what several print at once may mix.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--master-port", str(free_port())]
    for old in folder.glob("result.*"):
        old.unlink()
    _output(launcher, code, folder, arguments, environment)
    files = sorted(folder.glob("result.*"), key=lambda file: int(file.suffix[1:]))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def free_port() -> int:
    """Returns a port of this machine that nothing uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(command: list[str], code: str, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> Any:
    return json.loads(_output(command, code, folder, arguments, environment).strip().splitlines()[-1])


def _output(
    command: list[str], code: str, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]
) -> str:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    done = subprocess.run(
        [*command, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise Failed(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout
