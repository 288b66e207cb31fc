# SPDX-License-Identifier: Apache-2.0
"""Configurations of other systems as the command line is given them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from floatwise.exporters import SYSTEMS, get_system, load_settings, read_settings, recognise, version_for
from floatwise.report import Imported

__all__ = ["read_configurations"]


def read_configurations(paths: Sequence[Path], system: str | None = None, version: str | None = None) -> list[Imported]:
    """Returns what configurations mean; the last one decides the formats.

    Args:
      paths: Files of one training.
      system: Whose the first is; None to go by its content.
      version: The version to read the first as; None for the installed one.

    Raises:
      BadFileError: One cannot be read, or values are wrong or contradict each other.
      UnknownNameError: There is no such system.
    """
    found = []
    for path in paths:
        settings = load_settings(path)
        whose = get_system(system) if system else recognise(settings, SYSTEMS.values())
        read_as = version_for(whose, version)
        found.append(Imported(whose, str(read_as), settings, read_settings(settings, whose, read_as)))
    return found
