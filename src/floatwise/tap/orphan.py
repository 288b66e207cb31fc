# SPDX-License-Identifier: Apache-2.0
"""Ends a child whose parent is gone: a killed command leaves nothing running, not even a batch that takes an hour."""

from __future__ import annotations

import os
import threading
import time

from floatwise.tap.stop import stop_process

__all__ = ["leave_with_parent"]

#: Seconds between looks. Chosen: soon enough for a person who killed the command.
_INTERVAL_SECONDS = 1.0


def leave_with_parent() -> None:
    """Watches in a thread of its own whether the process that started this one still lives."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_INTERVAL_SECONDS)
        stop_process()

    threading.Thread(target=watch, name="floatwise-parent", daemon=True).start()
