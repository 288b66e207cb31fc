# SPDX-License-Identifier: Apache-2.0
"""Scripts that are meant to be started by `torchrun`: a recording runs them as the one process of a group of one."""

from __future__ import annotations

import os
import socket
import sys

__all__ = ["expects_launcher", "restart_as_one_process", "started_as_one_process"]

#: What `torchrun` sets and scripts read (torch/distributed/run.py, torch 2.13).
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MARK = "FLOATWISE_ONE_PROCESS"


def expects_launcher(error: BaseException) -> bool:
    """True when a script failed because it was not started by `torchrun`."""
    if isinstance(error, ModuleNotFoundError):
        return error.name == "mpi4py"  # what DeepSpeed asks when nobody has told it its rank
    if isinstance(error, KeyError):
        return bool(error.args) and error.args[0] in _VARIABLES
    return isinstance(error, ValueError) and "environment variable" in str(error) and "expected" in str(error)


def started_as_one_process() -> bool:
    """True after `restart_as_one_process`."""
    return _MARK in os.environ


def restart_as_one_process() -> None:
    """Starts this process anew with the environment of a group of one; does nothing when that was done before."""
    if started_as_one_process():
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    values = ("0", "1", "0", "1", "127.0.0.1", port)
    os.environ.update(zip(_VARIABLES, values, strict=True), **{_MARK: "1"})
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
