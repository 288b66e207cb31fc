# SPDX-License-Identifier: Apache-2.0
"""Decisions, formats, devices and this machine, on the terminal, as one HTML file, and for machines."""

from __future__ import annotations

from floatwise.report.explain import device_to_json, format_to_json, render_device, render_format
from floatwise.report.html import report_html, write_report
from floatwise.report.info import Info, gather_info, info_to_json, render_info
from floatwise.report.terminal import render_decision
from floatwise.report.terminal_comparison import render_comparison

__all__ = [
    "Info",
    "device_to_json",
    "format_to_json",
    "gather_info",
    "info_to_json",
    "render_comparison",
    "render_decision",
    "render_device",
    "render_format",
    "render_info",
    "report_html",
    "write_report",
]
