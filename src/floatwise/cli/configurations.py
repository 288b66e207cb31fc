# SPDX-License-Identifier: Apache-2.0
"""Configurations of other systems as the command line is given them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from floatwise.exporters import SYSTEMS, get_system, load_settings, load_together, recognise, version_for
from floatwise.report import Imported

__all__ = ["read_configurations"]


def read_configurations(paths: Sequence[Path], system: str | None = None, version: str | None = None) -> list[Imported]:
    """Returns what configurations of one training mean; the last one decides the formats.

    A DeepSpeed file that one of them names is read as well.

    Args:
      paths: Files of one training.
      system: Whose the first is; None to go by its content.
      version: The version to read the first as; None for the installed one.

    Raises:
      BadFileError: One cannot be read, or values are wrong or contradict each other.
      UnknownNameError: There is no such system.
    """
    versions = {}
    if version is not None:
        first = get_system(system) if system else recognise(load_settings(paths[0]), SYSTEMS.values())
        versions = {first.name: version}
    return [
        Imported(whose, str(version_for(whose, versions.get(whose.name))), settings, reading)
        for whose, settings, reading in load_together(paths, SYSTEMS, versions, system)
    ]
