# SPDX-License-Identifier: Apache-2.0
"""Projects written for tests, and their own commands run in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from floatwise.scaffold import Answers, choose, render, write_project

__all__ = ["run_python", "write"]

SECONDS = 400


def write(folder: Path, **answers: Any) -> Path:
    """Writes a project and returns its folder."""
    given = Answers(**answers)
    write_project(folder, render(given, choose(given)).files)
    return folder


def run_python(project: Path, *arguments: str, code: int = 0) -> str:
    """Runs Python in a project as a person does, expects an exit code, and returns what was printed.

    One thread for each process and no floatwise to import: the project stands alone.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "FLOATWISE_LANG")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr
