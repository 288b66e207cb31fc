# SPDX-License-Identifier: Apache-2.0
"""Several targets decided together: what one script's recording and rehearsals say about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from floatwise.errors import ScriptError
from floatwise.hardware import Device
from floatwise.planner.candidates import plans_to_rehearse
from floatwise.planner.decide import decide
from floatwise.planner.decision import Decision
from floatwise.planner.record import Progress
from floatwise.planner.rehearse import rehearse
from floatwise.planner.rehearse_natively import rehearse_natively
from floatwise.planner.rehearsed import Rehearsed
from floatwise.probe.recording import Recording

__all__ = ["Target", "decide_all", "rehearse_for"]


@dataclass(frozen=True)
class Target:
    """A device to decide for.

    Attributes:
      device: Its row.
      here: True when it is this machine's device.
    """

    device: Device
    here: bool


def decide_all(
    recording: Recording, targets: Sequence[Target], wanted_steps: int, rehearsed: Rehearsed
) -> list[Decision]:
    """Returns a decision for each target, in their order; see `decide`."""
    return [decide(recording, target.device, target.here, wanted_steps, rehearsed) for target in targets]


def rehearse_for(
    recording: Recording, targets: Sequence[Target], steps: int, rehearsed: Rehearsed, progress: Progress
) -> Rehearsed:
    """Rehearses the script of a recording under every plan that one of the targets would choose.

    A recipe that its rehearsal refuses makes room for another, which is rehearsed next. A script that cannot be
    rehearsed, since it fails in float32 when it is watched so closely, is judged by its values alone.

    Args:
      recording: The probed run.
      targets: Where the script is to be trained.
      steps: Iterations of each run.
      rehearsed: What is known already.
      progress: Told after each iteration.
    """
    while not rehearsed.impossible:
        decisions = decide_all(recording, targets, steps, rehearsed)
        plans = plans_to_rehearse(zip(decisions, (target.device for target in targets), strict=True), rehearsed)
        if not plans:
            break
        try:
            if recording.framework == "torch":
                rehearsed = rehearse(rehearsed, plans, recording.script, recording.arguments, steps, progress)
            else:
                rehearsed = rehearse_natively(rehearsed, plans, recording, steps, progress)
        except ScriptError as error:
            rehearsed = replace(rehearsed, impossible=str(error).partition("\n")[0])
    return rehearsed
