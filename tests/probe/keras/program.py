# SPDX-License-Identifier: Apache-2.0
"""Records scripts one after the other in this process: importing Keras and a backend takes seconds.

Arguments: a folder for recordings, and names of scripts in tests/scripts/keras. Those whose name ends with `+` run
alone before, and write their losses to a file. Prints as JSON what became of each.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from floatwise.probe import keras_child
from floatwise.probe.keras_child import RecordingChild
from floatwise.tap import plain_child
from floatwise.tap.execute import run_script
from floatwise.tap.job import Job

SCRIPTS = Path(__file__).parents[2] / "scripts" / "keras"
STEPS = 30


class Stopped(BaseException):
    """Stands for the end of the process."""


class Line:
    """Stands for the line to the parent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, event: str, **values: Any) -> None:
        if not self.messages or self.messages[-1]["event"] not in ("done", "failed"):
            self.messages.append({"event": event, **values})


def stop() -> None:
    raise Stopped


def record(name: str, folder: Path, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """Records one script and returns the messages."""
    child = RecordingChild(Job(str(SCRIPTS / f"{name}.py"), arguments, STEPS, output=str(folder / f"{name}.rec")))
    line = Line()
    child.channel = line  # type: ignore[assignment]
    try:
        with mock.patch.object(plain_child, "stop_process", stop):
            child.main()
    except Stopped:
        pass
    finally:
        child.patches.undo()
    return line.messages


def forget_session() -> None:
    """Names of layers count from 1 again, and policies are Keras' own."""
    if "keras" in sys.modules:
        import keras

        keras.utils.clear_session()
        keras.config.set_dtype_policy("float32")


def main() -> None:
    """Runs what the arguments name."""
    assert keras_child.CHILD is RecordingChild
    folder, found = Path(sys.argv[1]), {}
    warnings.simplefilter("ignore")
    argv = list(sys.argv)
    for word in argv[2:]:
        name, compared, own = word.rstrip("+"), word.endswith("+"), {}
        losses = folder / f"{name}.json"
        for run in ("alone", "recorded") if compared else ("recorded",):
            forget_session()
            if run == "alone":
                run_script(str(SCRIPTS / f"{name}.py"), [str(losses)])
                own["alone"] = json.loads(losses.read_text())
            else:
                own["messages"] = record(name, folder, (os.devnull,) if compared else ())
        found[name] = own
    print(json.dumps(found))


main()
