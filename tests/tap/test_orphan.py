# SPDX-License-Identifier: Apache-2.0
"""A child whose parent was killed ends by itself, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import time
from floatwise.tap.orphan import leave_with_parent
leave_with_parent()
print("begun", flush=True)
time.sleep(3600)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
child.wait()
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        word, number = parent.stdout.readline().split()
        assert (word, is_running(int(number))) == ("begun", True)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(int(number)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(int(number))
