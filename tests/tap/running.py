# SPDX-License-Identifier: Apache-2.0
"""Running user scripts in the test's own process, alone and under the recorder: starting Python anew takes seconds."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from typing_extensions import override

from floatwise.probe.child import RecordingChild
from floatwise.probe.recording import Recording, load_recording
from floatwise.tap.child import ScriptChild
from floatwise.tap.core import Tap
from floatwise.tap.execute import run_script
from floatwise.tap.job import Job

__all__ = ["Ran", "as_main", "record_here", "run_alone", "run_here"]


class Stopped(BaseException):
    """Stands for the end of the process; no script here catches it."""


@dataclass
class Ran:
    """What a run under the recorder has told.

    Attributes:
      messages: What the parent would have been sent.
      output: What the script printed.
      recording: The recording, when one was written.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    recording: Recording | None = None

    @property
    def failure(self) -> str:
        """What the parent was told of a failure; empty when there was none."""
        return next((m["message"] for m in self.messages if m["event"] == "failed"), "")

    # The child's end of the line to its parent.

    def send(self, event: str, **values: Any) -> None:
        """Keeps a message; after the end nobody listens."""
        if not self.messages or self.messages[-1]["event"] not in ("done", "failed"):
            self.messages.append({"event": event, **values})

    def wait(self) -> None:
        """Has leave at once."""


class _Recorder(RecordingChild):
    @override
    def open_tap(self) -> Tap:
        self.tap = super().open_tap()
        return self.tap


def run_alone(script: str, folder: Path, arguments: Sequence[str] = ()) -> str:
    """Runs a script of `folder` as Python would and returns what it printed."""
    output = io.StringIO()
    with as_main(folder), contextlib.redirect_stdout(output):
        run_script(script, arguments)
    return output.getvalue()


def record_here(
    script: str,
    folder: Path,
    steps: int,
    arguments: Sequence[str] = (),
    full: bool = False,
    seed_offset: int = 0,
    keep: Path | None = None,
) -> Ran:
    """Records a script of `folder` for some iterations; the file is kept under the name `keep`."""
    path = keep or folder / f"{Path(script).stem}.recording"
    job = Job(script, tuple(arguments), steps, seed_offset=seed_offset, output=str(path), options={"full": full})
    child = _Recorder(job)
    try:
        ran = run_here(child, folder)
    finally:
        child.share.stop()
    ran.recording = load_recording(path) if path.exists() else None
    if keep is None:
        path.unlink(missing_ok=True)
    return ran


def run_here(child: ScriptChild, folder: Path) -> Ran:
    """Runs a child in this process; its `open_tap` must leave the tap in `child.tap`, so that it can be closed."""
    ran, output = Ran(), io.StringIO()
    child.channel = ran  # type: ignore[assignment]
    with as_main(folder), contextlib.redirect_stdout(output), mock.patch("floatwise.tap.child.stop_process", _stop):
        try:
            child.main()
        except Stopped:
            pass
        finally:
            tap = getattr(child, "tap", None)
            if tap is not None:
                tap.__exit__(None, None, None)
    ran.output = output.getvalue()
    return ran


def _stop() -> NoReturn:
    raise Stopped


@contextlib.contextmanager
def as_main(folder: Path) -> Iterator[None]:
    """Puts back what running a script changes in a process."""
    modules, path, argv, cwd = dict(sys.modules), list(sys.path), list(sys.argv), os.getcwd()
    os.chdir(folder)
    with warnings.catch_warnings(), mock.patch.dict(os.environ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            os.chdir(cwd)
            sys.path[:], sys.argv[:] = path, argv
            sys.modules["__main__"] = modules["__main__"]
            for name, module in list(sys.modules.items()):
                # What lies beside the script goes; a library stays, for its second import may fail.
                if name not in modules and str(folder) in str(getattr(module, "__file__", None)):
                    del sys.modules[name]
            torch.set_default_dtype(torch.float32)
