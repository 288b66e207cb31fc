# SPDX-License-Identifier: Apache-2.0
"""Plans as the configuration of other systems, and those configurations as plans."""

from __future__ import annotations

from floatwise.exporters.export import Exported, Note, export_plan, version_for
from floatwise.exporters.read import load_settings, read_settings, recognise
from floatwise.exporters.systems import SYSTEMS, get_system
from floatwise.exporters.together import load_together

__all__ = [
    "SYSTEMS",
    "Exported",
    "Note",
    "export_plan",
    "get_system",
    "load_settings",
    "load_together",
    "read_settings",
    "recognise",
    "version_for",
]
