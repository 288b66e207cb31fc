# SPDX-License-Identifier: Apache-2.0
"""Decisions, formats, devices and this machine, on the terminal, as one HTML file, and for machines."""

from __future__ import annotations

from floatwise.report.changes import changes_to_json, render_changes
from floatwise.report.explain import device_to_json, format_to_json, render_device, render_format
from floatwise.report.explain_system import knob_to_json, render_knob, render_system, system_to_json
from floatwise.report.exported import exported_to_json, render_export_notes, render_systems, systems_to_json
from floatwise.report.html import report_html, write_report
from floatwise.report.imported import Imported, imported_to_json, render_imported
from floatwise.report.info import Info, gather_info, info_to_json, render_info
from floatwise.report.terminal import render_decision
from floatwise.report.terminal_comparison import render_comparison

__all__ = [
    "Imported",
    "Info",
    "changes_to_json",
    "device_to_json",
    "exported_to_json",
    "format_to_json",
    "gather_info",
    "imported_to_json",
    "info_to_json",
    "knob_to_json",
    "render_changes",
    "render_comparison",
    "render_decision",
    "render_device",
    "render_export_notes",
    "render_format",
    "render_imported",
    "render_info",
    "render_knob",
    "render_system",
    "render_systems",
    "report_html",
    "system_to_json",
    "systems_to_json",
    "write_report",
]
