# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its DevTools protocol through two pipes: no port, no package beside Python's own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Browser", "Tab", "chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No sandbox, because containers run everything as root; nothing is loaded but files of the test.
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_PATIENCE_SECONDS = 90.0


def chromium() -> str | None:
    """Returns the path of a Chromium, or None where there is none."""
    if not hasattr(os, "posix_spawn"):
        return None
    return next((path for path in map(shutil.which, _NAMES) if path), None)


class Browser:
    """One browser process with an empty profile, ended on leaving the context."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.messages: list[dict[str, Any]] = []
        self._rest = b""
        self._count = 0

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="floatwise-browser-")
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        arguments = [self.program, *_OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
        # Chromium reads from descriptor 3 and writes to 4; copies above them keep the two from overwriting each other.
        read, write = (_above(descriptor) for descriptor in (commands, answers))
        actions = [
            (os.POSIX_SPAWN_DUP2, read, 3),
            (os.POSIX_SPAWN_DUP2, write, 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._pid = os.posix_spawn(self.program, arguments, dict(os.environ), file_actions=actions)
        for descriptor in (commands, answers, read, write):
            os.close(descriptor)
        os.set_blocking(self._in, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call("Browser.close")
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, width: int, height: int = 900, **media: str) -> Tab:
        """Opens a page and waits until it is loaded.

        Args:
          path: Its file.
          width: Of the window in CSS pixels; under 600 the device is a phone.
          height: The same.
          **media: Media features with `_` for `-`: `prefers_color_scheme="dark"`.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.load(path)
        return tab

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._count += 1
        number = self._count
        command = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            for message in self.messages:
                if message.get("id") == number:
                    self.messages.remove(message)
                    if "error" in message:
                        raise OSError(f"{method}: {message['error']}")
                    return dict(message["result"])
            self.read(until)

    def read(self, until: float) -> None:
        """Takes in what has come, waiting for it no longer than `until`."""
        while True:
            try:
                data = os.read(self._in, 1 << 20)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"the browser said nothing for {_PATIENCE_SECONDS:.0f} s") from None
                time.sleep(0.01)
                continue
            if not data:
                raise ConnectionError("the browser has ended")
            *whole, self._rest = (self._rest + data).split(b"\0")
            if whole:
                self.messages += map(json.loads, whole)
                return


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends the page a command and returns its result."""
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int = 900) -> None:
        """Changes the size of the window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def load(self, path: Path) -> None:
        """Goes to a page and waits until it is loaded."""
        before = len(self._events("Page.loadEventFired"))
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + _PATIENCE_SECONDS
        while len(self._events("Page.loadEventFired")) == before:
            self._browser.read(until)

    def evaluate(self, expression: str) -> Any:
        """Returns what an expression gives, once its promise is kept.

        Raises:
          AssertionError: It throws.
        """
        given = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in given, given["exceptionDetails"]
        return given["result"].get("value")

    def complaints(self) -> list[str]:
        """Returns what the page wrote to the console or threw, what was refused, and what it asked the network for."""
        found = [str(event["args"]) for event in self._events("Runtime.consoleAPICalled")]
        found += [str(event["exceptionDetails"]) for event in self._events("Runtime.exceptionThrown")]
        found += [str(event["entry"]) for event in self._events("Log.entryAdded")]
        urls = [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
        return found + [url for url in urls if not url.startswith(("file:", "data:"))]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Writes a picture of the page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**{key: size[key] for key in ("x", "y", "width", "height")}, "scale": 1}}

    def pdf(self) -> bytes:
        """Returns the page as printed."""
        printed = self.call("Page.printToPDF", printBackground=False)
        return base64.b64decode(printed["data"])

    def close(self) -> None:
        """Closes it."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _events(self, name: str) -> list[dict[str, Any]]:
        mine = (message for message in self._browser.messages if message.get("sessionId") == self._session)
        return [message["params"] for message in mine if message.get("method") == name]


def _above(descriptor: int) -> int:
    """Returns a copy of a descriptor with a number above 10."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 11)
