# SPDX-License-Identifier: Apache-2.0
"""Records a script: one child process, float32, under the probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from floatwise.planner.children import RECORDING_CHILDREN
from floatwise.probe.recording import Recording, load_recording
from floatwise.tap.job import Job
from floatwise.tap.launch import Child

__all__ = ["Progress", "record"]

#: Told after each iteration: what is going on, iterations done, iterations in all.
Progress = Callable[[str, int, int], None]


def record(
    script: str,
    arguments: Sequence[str],
    steps: int,
    output: str,
    progress: Progress,
    full: bool = False,
    framework: str = "torch",
) -> Recording:
    """Runs the script for `steps` iterations in float32 and writes what it saw to `output`.

    Args:
      script: Path of the script.
      arguments: Its own arguments.
      steps: Iterations.
      output: File of the recording.
      progress: Told after each iteration.
      full: Look at every value, not at a sample.
      framework: What the script trains with: `torch`, `keras` or `jax`.

    Raises:
      ScriptError: The script failed or never took a training step.
    """
    job = Job(script, tuple(arguments), steps, output=os.path.abspath(output), options={"full": full})
    progress("record", 0, steps)
    with Child(RECORDING_CHILDREN[framework], job, f"recording {script}") as child:
        for message in child.messages():
            if message["event"] == "step":
                progress("record", message["index"] + 1, steps)
    return load_recording(output)
