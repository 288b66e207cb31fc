# SPDX-License-Identifier: Apache-2.0
"""`floatwise plan`: the main job, from an unmodified script to a decision, a plan file and a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.packages import framework_for
from floatwise.cli.plan_files import PlanFiles
from floatwise.cli.progress import StepProgress
from floatwise.cli.targets import names_of, targets_for
from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import BadInputError, ScriptError
from floatwise.hardware import get_device
from floatwise.plan import save_plan
from floatwise.planner import (
    Rehearsed,
    Target,
    decide_all,
    measure,
    read_rehearsed,
    record,
    rehearse_for,
    with_failure,
    with_known_measurement,
    with_measured,
    with_measurement,
    with_rehearsed,
    without_measurement,
)
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording, load_recording, save_recording
from floatwise.report import render_comparison, render_decision, write_report

__all__ = ["plan"]

#: Three steps warm up and are not timed (`floatwise.torch.script.child`); one ratio of the rest would be chance.
_FEWEST_MEASURED_STEPS = 5
#: The second step is the first from which memory and speed can be predicted (`floatwise.rehearse.memory_script`).
_FEWEST_REHEARSED_STEPS = 2


def plan(
    script: Annotated[str | None, typer.Argument(help="The training script, unmodified.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments, after --.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Device to plan for: t4, 'RTX 3090', here. Several compare them. Default: here."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to record, to rehearse and to measure.")] = 20,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the plan goes. Default: precision.toml.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: beside the plan, ending in .html.")
    ] = None,
    recording: Annotated[Path | None, typer.Option(help="Decide again from this file, without a run.")] = None,
    full: Annotated[bool, typer.Option(help="Look at every value, not at 16 Ki per tensor.")] = False,
    rehearsed: Annotated[
        bool, typer.Option("--rehearse/--no-rehearse", help="Train as the target's matrix units would compute.")
    ] = True,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Train side by side on this machine.")
    ] = True,
    framework: Annotated[
        str | None, typer.Option(help="torch, keras or jax. Default: what the script's imports say.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a script in float32 for a few steps and decide which precision to train it with, and why.

    Rehearses the candidates as the target's matrix units would compute them, measures what this machine can do,
    and writes the plan, a report (.html) and the recording (.recording) beside it.
    """
    wanted = list(dict.fromkeys(map(get_device, names_of(target))))
    _check(script, recording)
    files = PlanFiles.choose(wanted or [None], output, report, recording)
    with StepProgress() as progress:
        if recording is not None:
            values = load_recording(recording)
            _check_script(script, values, recording)
        else:
            assert script is not None  # _check
            trains_with = framework_for(script, framework)
            values = record(script, arguments or (), steps, str(files.recording), progress, full, trains_with)
        targets = targets_for(wanted, values)
        wanted_steps = min(steps, values.steps) if recording else steps
        known = read_rehearsed(values, str(files.recording))
        if script is not None:
            values = replace(values, script=script, arguments=tuple(arguments or ()))
            if rehearsed and min(steps, values.steps) >= _FEWEST_REHEARSED_STEPS:
                known = rehearse_for(values, targets, steps, known, progress)
                values = with_rehearsed(values, known)
        decisions = decide_all(values, targets, wanted_steps, known)
        if script is not None and measured and min(steps, values.steps) >= _FEWEST_MEASURED_STEPS:
            decisions, values = _measured(decisions, targets, steps, values, known, progress)
        else:
            decisions = [with_known_measurement(d, values, t) for d, t in zip(decisions, targets, strict=True)]
    if script is not None:
        save_recording(values, files.recording)
    _hand_over(decisions, values, files, as_json)


def _measured(
    decisions: Sequence[Decision],
    targets: Sequence[Target],
    steps: int,
    values: Recording,
    known: Rehearsed,
    progress: StepProgress,
) -> tuple[list[Decision], Recording]:
    proven = list(decisions)
    for index, (decision, target) in enumerate(zip(decisions, targets, strict=True)):
        if not target.here or decision.plan.is_float32:
            proven[index] = without_measurement(decision, values, target)
            continue
        script, arguments, name = values.script, values.arguments, target.device.name
        try:
            seeds = known.seed_losses
            result = measure(decision.plan, script, arguments, steps, name, progress, seeds, values.framework)
        except ScriptError as error:
            proven[index] = with_failure(decision, str(error).partition("\n")[0], values, target.device)
        else:
            proven[index] = with_measurement(decision, result, values, target.device)
            values = with_measured(values, result)
    return proven, values


def _check(script: str | None, recording: Path | None) -> None:
    if script is None and recording is None:
        raise BadInputError(
            "got neither a script nor a recording; allowed: floatwise plan train.py, "
            "or floatwise plan --recording precision.recording --target nvidia-t4"
        )
    if script is not None and not Path(script).is_file():
        what = "a folder" if Path(script).is_dir() else "no such file"
        raise ScriptError(f"{script}: {what}; give the path of a Python training script")


def _check_script(script: str | None, values: Recording, recording: Path) -> None:
    if script is not None and Path(script).name != Path(values.script).name:
        raise BadInputError(
            f"{recording}: recorded from {values.script}, got {script}; leave out --recording to record that, "
            "or the script to decide from the recording alone"
        )


def _hand_over(decisions: Sequence[Decision], values: Recording, files: PlanFiles, as_json: bool) -> None:
    for decision, path in zip(decisions, files.plans, strict=True):
        save_plan(decision.plan, path)
    write_report(decisions, values, files.report, files.plans, files.recording)
    if as_json:
        objects = [decision.to_json() for decision in decisions]
        answer = objects[0] if len(objects) == 1 else {"targets": objects}
        json.dump(answer, sys.stdout, ensure_ascii=not can_print_unicode(), indent=2, allow_nan=False)
        print()
    elif len(decisions) == 1:
        render_decision(decisions[0], Console(), files.plans[0], files.report, files.recording)
    else:
        render_comparison(decisions, Console(), files.plans, files.report, files.recording)
