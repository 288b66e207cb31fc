# SPDX-License-Identifier: Apache-2.0
"""`floatwise report`: the page again, from a recording alone: in another language, or for other devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from floatwise.cli.plan_files import PlanFiles
from floatwise.cli.targets import names_of, targets_for
from floatwise.errors import BadInputError
from floatwise.hardware import get_device
from floatwise.planner import decide_all, read_rehearsed, with_known_measurement
from floatwise.probe.recording import load_recording
from floatwise.report import write_report

__all__ = ["report"]


def report(
    recording: Annotated[Path, typer.Argument(help="What `floatwise plan` recorded (precision.recording).")],
    target: Annotated[
        list[str] | None, typer.Option(help="Device to report on; several compare them. Default: this one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: beside the recording, ending in .html.")
    ] = None,
) -> None:
    """Write the report of a recording again; nothing runs, and no plan is written."""
    if recording.suffix == ".toml":
        raise BadInputError(f"{recording}: a plan; give the recording beside it, {recording.with_suffix('.recording')}")
    wanted = list(dict.fromkeys(map(get_device, names_of(target))))
    values = load_recording(recording)
    targets = targets_for(wanted, values)
    page = output or recording.with_suffix(".html")
    files = PlanFiles.choose(wanted or [None], recording.with_suffix(".toml"), page, recording)
    decisions = decide_all(values, targets, values.steps, read_rehearsed(values, str(recording)))
    decisions = [with_known_measurement(d, values, t) for d, t in zip(decisions, targets, strict=True)]
    write_report(decisions, values, files.report, files.plans, recording)
    print(files.report)
