# SPDX-License-Identifier: Apache-2.0
"""The devices that were asked for, and which of them is this machine's."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.errors import BadInputError
from floatwise.hardware import Device, detect
from floatwise.planner import Target
from floatwise.probe.recording import Recording

__all__ = ["names_of", "targets_for"]


def names_of(options: Sequence[str] | None) -> list[str]:
    """Returns the names that were given with `--target`, each by itself or several with commas between."""
    return [name for option in options or () for name in option.split(",")]


def targets_for(wanted: Sequence[Device], values: Recording) -> list[Target]:
    """Returns the targets in the order given; without any, the device that the script ran on.

    Args:
      wanted: Rows that were asked for.
      values: The probed run.

    Raises:
      BadInputError: Nothing was asked for and this machine's device has no row.
    """
    found = detect()
    mine = found[-1] if values.device == "cpu" else found[0]
    if wanted:
        return [Target(row, mine.device is not None and row.id == mine.device.id) for row in wanted]
    if mine.device is None:
        raise BadInputError(
            f"this machine's device {mine.reported_name!r} ({mine.how}) has no row in the hardware table; "
            "name one that is like it with --target (floatwise explain shows a row)"
        )
    return [Target(mine.device, True)]
