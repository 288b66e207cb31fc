# SPDX-License-Identifier: Apache-2.0
"""The parent's end: starts a child for a job, hands on its messages, leaves no process behind. No framework here."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from floatwise.errors import ScriptError
from floatwise.tap.channel import ADDRESS_VARIABLE, KEY_VARIABLE
from floatwise.tap.job import Job

__all__ = ["Child"]

#: Lines of a script's own output that are kept for an error message.
_TAIL_LINES = 12
#: What a connection made just before a process's end is waited for, and the messages on it: convention. A worker
#: that outlives the script may keep a connection open.
_LAST_CONNECTION_SECONDS, _LAST_MESSAGE_SECONDS = 0.2, 2.0


class Child:
    """A child process that runs a script for a job.

    Args:
      module: Module to run as `python -m module job-file`.
      job: What to do.
      what: Words for error messages ("recording train.py").
    """

    def __init__(self, module: str, job: Job, what: str) -> None:
        self.what = what
        self._folder = tempfile.TemporaryDirectory(prefix="floatwise-")
        folder = Path(self._folder.name)
        job = replace(job, scratch=str(folder))
        (folder / "job.json").write_text(job.dumps(), encoding="utf-8")
        self._output = folder / "output.log"
        # Appended to: the script's processes and this one each have a place of their own in the file.
        self._log: IO[bytes] = open(self._output, "ab")
        key = secrets.token_bytes(16)
        self._listener = Listener(None, authkey=key)
        environment = {**os.environ, ADDRESS_VARIABLE: str(self._listener.address), KEY_VARIABLE: key.hex()}
        environment.setdefault("PYTHONHASHSEED", "0")
        environment.setdefault("WANDB_MODE", "disabled")  # a probe is no experiment to log
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._speaker: Connection | None = None
        self._closing = False
        self._receivers: list[threading.Thread] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(folder / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._await_end, daemon=True).start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def go(self) -> None:
        """Lets a paced child run one more iteration."""
        try:
            if self._speaker is not None:
                self._speaker.send_bytes(b"go")
        except (BrokenPipeError, ConnectionError):
            pass  # it has ended; the next message says how

    def next(self) -> dict[str, Any]:
        """Returns the next message.

        Raises:
          ScriptError: The script failed, or ended without a word.
        """
        message = self._inbox.get()
        if message is None:
            raise ScriptError(self._ended())
        if message["event"] == "failed":
            tail = "" if message["traceback"] else self._tail()
            raise ScriptError(message["message"] + tail, message["traceback"])
        return message

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the child's messages up to and with `done`; raises as `next` does."""
        while True:
            message = self.next()
            yield message
            if message["event"] == "done":
                return

    def close(self) -> None:
        """Ends the child and everything it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._closing = True
        with suppress(OSError):
            Client(self._listener.address).close()  # wakes the thread that waits for connections
        self._listener.close()
        self._log.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        # The script's own process connects, or the first process that the script spawns.
        while not self._closing:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # it ended while it connected
            except OSError:
                return
            receiver = threading.Thread(target=self._receive, args=(connection,), daemon=True)
            receiver.start()
            self._receivers.append(receiver)

    def _receive(self, connection: Connection) -> None:
        while True:
            try:
                message = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            self._speaker = connection
            self._inbox.put(message)

    def _await_end(self) -> None:
        self._process.wait()
        # Messages sent just before the end are still on their way through the receiving threads.
        time.sleep(_LAST_CONNECTION_SECONDS)
        for receiver in self._receivers:
            receiver.join(_LAST_MESSAGE_SECONDS)
        self._inbox.put(None)

    def _ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            how = f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        else:
            how = f"ended the process itself with exit code {code}"
        return f"while {self.what}, the script {how} before its training steps were done{self._tail()}"

    def _tail(self) -> str:
        lines = self._output.read_bytes().decode(errors="replace").strip().splitlines()
        # torch 2.13's profiler says on stderr that it starts and stops.
        lines = [line for line in lines if not line.startswith("USDT:")][-_TAIL_LINES:]
        return "\nits last output was:\n" + "\n".join(f"  | {line}" for line in lines) if lines else ""
