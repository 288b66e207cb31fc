# SPDX-License-Identifier: Apache-2.0
"""Exported texts for tests."""

from __future__ import annotations

from typing import Any

from floatwise.exporters import export_plan, get_system
from floatwise.exporters.export import Exported
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.system import Reading
from floatwise.exporters.version import Version
from floatwise.plan import Plan

__all__ = ["exported", "reading", "said"]


def exported(
    plan: Plan, system: str, *, form: str | None = None, version: str | None = None, **options: Any
) -> Exported:
    """Exports for the version whose source was read, unless another is named."""
    row = get_system(system)
    return export_plan(plan, row, form=form, options=options, version=version or row.read_version)


def reading(text: str, system: str, form: str = "python") -> Reading:
    """Reads a configuration for the version whose source was read."""
    row = get_system(system)
    return read_settings(settings_of_text(text, form, "given"), row, Version.of(row.read_version))


def said(result: Exported) -> dict[str, str]:
    """Returns what the notes say of each lost value, in English, without those of the plan's origin."""
    return {field: note.what.en for note in result.notes if not note.is_record for field in note.fields}
