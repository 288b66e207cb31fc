# SPDX-License-Identifier: Apache-2.0
"""Records a script: one child process, float32, under the probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from floatwise.probe.recording import Recording, load_recording
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["Progress", "record"]

#: Told after each iteration: what is going on, iterations done, iterations in all.
Progress = Callable[[str, int, int], None]


def record(
    script: str, arguments: Sequence[str], steps: int, output: str, progress: Progress, full: bool = False
) -> Recording:
    """Runs the script for `steps` iterations in float32 and writes what it saw to `output`.

    Raises:
      ScriptError: The script failed or never took a training step.
    """
    job = Job(script, tuple(arguments), steps, output=os.path.abspath(output), options={"full": full})
    progress("record", 0, steps)
    with Child("floatwise.probe.child", job, f"recording {script}") as child:
        for message in child.messages():
            if message["event"] == "step":
                progress("record", message["index"] + 1, steps)
    return load_recording(output)
