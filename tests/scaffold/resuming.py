# SPDX-License-Identifier: Apache-2.0
"""Runs a project's train.py, at once and in two parts, and returns the reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scaffold.projects import run_python

__all__ = ["in_two_parts", "report_of"]


def report_of(project: Path, *arguments: str) -> dict[str, Any]:
    """Returns the report of one run, with what it printed as `printed`."""
    printed = run_python(project, "train.py", "--report", "report.json", *arguments)
    report: dict[str, Any] = json.loads((project / "report.json").read_text())
    return {**report, "printed": printed}


def in_two_parts(project: Path, steps: int, first: int) -> tuple[list[float], list[float]]:
    """Returns the losses of `steps` steps at once, and of the same steps interrupted after `first` of them."""
    whole = report_of(project, "--steps", str(steps), "--out", "whole")
    before = report_of(project, "--steps", str(first), "--out", "parts")
    after = report_of(project, "--steps", str(steps), "--out", "parts", "--resume")
    assert after["first_step"] == first + 1
    return whole["losses"], before["losses"] + after["losses"]
