# SPDX-License-Identifier: Apache-2.0
"""Starts one process per rank, joined by gloo, and brings back what a function returned on each of them.

Starting Python and torch takes seconds: put many cases into the function of one call. The ranks are forks of one
process that has imported what they need, where the system can fork.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
from datetime import timedelta
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

__all__ = ["on_ranks"]

ROOT = Path(__file__).parents[3]
# Far more than any of this needs; a busy machine must not make a test fail.
COLLECTIVE_SECONDS = 120
ALL_SECONDS = 300


def on_ranks(count: int, module: str, function: str, folder: Path) -> list[Any]:
    """Calls a function without arguments on `count` ranks and returns its results, in the order of the ranks.

    Args:
      count: How many processes.
      module: Its name from the repository's root on: `tests.torch.distributed.agreement_workers`.
      function: The function's name; what it returns is pickled.
      folder: An empty folder for the ranks to meet in.

    Raises:
      AssertionError: A rank failed; the text is what was written to stderr.
    """
    command = [sys.executable, "-m", "tests.torch.distributed.processes", str(count), module, function, str(folder)]
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        parent = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            parent.wait(ALL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(parent)
    said = errors.read_text(encoding="utf-8", errors="replace")
    assert parent.returncode == 0, f"ended with {parent.returncode}:\n{said[-4000:]}"
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(count)]


def _end(parent: subprocess.Popen[bytes]) -> None:
    """Ends a process, when it still runs, and the ranks it has started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(parent.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # they have all ended
    else:
        parent.kill()
    parent.wait()


def _run_rank(rank: int, count: int, module: str, function: str, folder: Path) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"{folder.as_uri()}/meeting",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    result = getattr(importlib.import_module(module), function)()
    (folder / str(rank)).write_bytes(pickle.dumps(result))
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # torch 2.13 may abort in an orderly exit while a thread of gloo's lets go of the last collective


def _run_ranks(count: str, module: str, function: str, folder: str) -> None:
    importlib.import_module(module)
    method = "fork" if "fork" in get_all_start_methods() else "spawn"
    start_processes(_run_rank, (int(count), module, function, Path(folder)), int(count), start_method=method)


if __name__ == "__main__":
    _run_ranks(*sys.argv[1:])
