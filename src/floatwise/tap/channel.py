# SPDX-License-Identifier: Apache-2.0
"""The child's end of the line to its parent: JSON messages out, one word in for each iteration it may run."""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Client, Connection
from typing import Any

__all__ = ["ADDRESS_VARIABLE", "KEY_VARIABLE", "Channel"]

#: Environment variables with the parent's address and the key that opens it.
ADDRESS_VARIABLE, KEY_VARIABLE = "FLOATWISE_CHANNEL_ADDRESS", "FLOATWISE_CHANNEL_KEY"


class Channel:
    """Messages to the parent; connects when the first one is sent.

    A parent that is gone ends this process: nobody waits for its result.
    """

    def __init__(self) -> None:
        self._connection: Connection | None = None

    def send(self, event: str, **values: Any) -> None:
        """Sends one message."""
        try:
            self._connected().send_bytes(json.dumps({"event": event, **values}).encode())
        except (BrokenPipeError, ConnectionError):
            os._exit(1)

    def wait(self) -> None:
        """Waits for the parent's leave to run the next iteration."""
        try:
            self._connected().recv_bytes()
        except (EOFError, ConnectionError):
            os._exit(1)

    def _connected(self) -> Connection:
        if self._connection is None:
            key = bytes.fromhex(os.environ[KEY_VARIABLE])
            self._connection = Client(os.environ[ADDRESS_VARIABLE], authkey=key)
        return self._connection
