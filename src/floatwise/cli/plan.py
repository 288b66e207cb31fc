# SPDX-License-Identifier: Apache-2.0
"""`floatwise plan`: the main job, from an unmodified script to a decision, a plan file and a report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.packages import need_torch
from floatwise.cli.progress import StepProgress
from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import BadInputError, ScriptError
from floatwise.hardware import Device, detect, get_device
from floatwise.plan import save_plan
from floatwise.planner import decide, measure, record, with_failure, with_measurement
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording, load_recording
from floatwise.report import render_decision, write_report

__all__ = ["plan"]

DEFAULT_PLAN = Path("precision.toml")
#: Three steps warm up and are not timed (`floatwise.torch.script.child`); one ratio of the rest would be chance.
_FEWEST_MEASURED_STEPS = 5


def plan(
    script: Annotated[str | None, typer.Argument(help="The training script, unmodified.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments, after --.")] = None,
    target: Annotated[str | None, typer.Option(help="Device to plan for: t4, 'RTX 3090'. Default: this one.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to record and to measure.")] = 20,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the plan goes. Default: precision.toml.")
    ] = None,
    recording: Annotated[Path | None, typer.Option(help="Decide again from this file, without a run.")] = None,
    full: Annotated[bool, typer.Option(help="Look at every value, not at 16 Ki per tensor.")] = False,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Train side by side on this machine.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a script in float32 for a few steps and decide which precision to train it with, and why.

    Writes the plan, a report (.html) and the recording (.recording) beside it.
    """
    wanted = get_device(target) if target is not None else None
    output = output or _default_output(recording, wanted)
    recording_path = recording or output.with_suffix(".recording")
    _check(script, recording, output)
    with StepProgress() as progress:
        if recording is not None:
            values = load_recording(recording)
        else:
            need_torch()
            assert script is not None  # _check
            values = record(script, arguments or (), steps, str(recording_path), progress, full)
        device, here = _target(wanted, values)
        decision = decide(values, device, here, min(steps, values.steps) if recording else steps)
        enough = min(steps, values.steps) >= _FEWEST_MEASURED_STEPS
        if script is not None and here and measured and enough and not decision.plan.is_float32:
            decision = _tried(decision, script, arguments or (), steps, values, device, progress)
    _hand_over(decision, output, recording_path, as_json)


def _default_output(recording: Path | None, wanted: Device | None) -> Path:
    if recording is not None and wanted is not None and DEFAULT_PLAN.exists():
        return DEFAULT_PLAN.with_stem(f"{DEFAULT_PLAN.stem}-{wanted.id}")  # the plan in force stays
    return DEFAULT_PLAN


def _tried(
    decision: Decision,
    script: str,
    arguments: Sequence[str],
    steps: int,
    values: Recording,
    device: Device,
    progress: StepProgress,
) -> Decision:
    try:
        result = measure(decision.plan, script, arguments, steps, device.name, progress)
    except ScriptError as error:
        return with_failure(decision, str(error).partition("\n")[0], values, device)
    return with_measurement(decision, result, values, device)


def _check(script: str | None, recording: Path | None, output: Path) -> None:
    if script is None and recording is None:
        raise BadInputError(
            "got neither a script nor a recording; allowed: floatwise plan train.py, "
            "or floatwise plan --recording precision.recording --target nvidia-t4"
        )
    if script is not None and not Path(script).is_file():
        what = "a folder" if Path(script).is_dir() else "no such file"
        raise ScriptError(f"{script}: {what}; give the path of a Python training script")
    if not output.resolve().parent.is_dir():
        raise BadInputError(f"{output}: its folder does not exist; make it first, or choose another -o")
    if output.is_dir() or not os.access(output.resolve().parent, os.W_OK):
        raise BadInputError(f"{output}: no file can be written there; choose another -o")
    for beside in (output.with_suffix(".html"), output.with_suffix(".recording")):
        if beside.is_dir():
            raise BadInputError(f"{beside}: a folder stands where a file would be written; choose another -o")
    if output.suffix != ".toml":
        raise BadInputError(f"{output}: a plan file's name ends in .toml; try -o {output.with_suffix('.toml')}")


def _target(wanted: Device | None, values: Recording) -> tuple[Device, bool]:
    found = detect()
    mine = found[-1] if values.device == "cpu" else found[0]
    if wanted is not None:
        return wanted, mine.device is not None and wanted.id == mine.device.id
    if mine.device is None:
        raise BadInputError(
            f"this machine's device {mine.reported_name!r} ({mine.how}) has no row in the hardware table; "
            "name one that is like it with --target (floatwise explain shows a row)"
        )
    return mine.device, True


def _hand_over(decision: Decision, output: Path, recording_path: Path, as_json: bool) -> None:
    report_path = output.with_suffix(".html")
    save_plan(decision.plan, output)
    write_report(decision, report_path, output, recording_path)
    if as_json:
        json.dump(decision.to_json(), sys.stdout, ensure_ascii=not can_print_unicode(), indent=2, allow_nan=False)
        print()
    else:
        render_decision(decision, Console(), output, report_path, recording_path)
