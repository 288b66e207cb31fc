# SPDX-License-Identifier: Apache-2.0
"""Several targets side by side: one row each, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report import numbers, sentences
from floatwise.report.chosen import chosen_verdict
from floatwise.report.plain import plain
from floatwise.report.predictions import Quoted, fits_word, quoted_memory, quoted_speed
from floatwise.report.rehearsals import rehearsal_mood, rehearsal_word

__all__ = ["HEADERS", "TargetRow", "heading", "subheading", "target_row"]

_HEADING = Text("Precision for {n} devices", "{n} 种设备的训练精度")
_SUBHEADING = Text(
    "{script} · {parameters} parameters · {steps} steps recorded", "{script} · {parameters} 个参数 · 已录制 {steps} 步"
)


@dataclass(frozen=True)
class TargetRow:
    """What was decided for one device, as text; a dash stands for what is not known or not needed.

    Attributes:
      target: The device.
      recipe: What to train with there.
      is_float32: Whether that is float32.
      loss_scale: First loss scale.
      islands: How many modules stay in float32.
      rehearsal: What the rehearsal came to.
      mood: `good`, `bad` or empty, of the rehearsal.
      speed: Against float32.
      memory: Peak of tensor memory.
      fits: Whether the predicted peak fits into the device's memory.
      too_large: Whether it does not.
    """

    target: str
    recipe: str
    is_float32: bool
    loss_scale: str
    islands: str
    rehearsal: str
    mood: str
    speed: Quoted | None
    memory: Quoted | None
    fits: str
    too_large: bool


def heading(decisions: Sequence[Decision]) -> str:
    """Returns what is compared, in a few words."""
    return _HEADING.format(n=len(decisions))


def subheading(decision: Decision) -> str:
    """Returns what was looked at: script, size, steps."""
    return _SUBHEADING.format(
        script=plain(decision.script), parameters=numbers.count(decision.parameters), steps=decision.steps
    )


def target_row(decision: Decision) -> TargetRow:
    """Returns the row of one target."""
    verdict, choice = chosen_verdict(decision), decision.loss_scale
    is_float32 = decision.plan.is_float32
    return TargetRow(
        target=sentences.target(decision),
        recipe=plain(decision.recipe),
        is_float32=is_float32,
        loss_scale=numbers.power_of_two(choice.initial) if choice is not None else numbers.MISSING,
        islands=str(len(decision.islands)) if not is_float32 else numbers.MISSING,
        rehearsal=numbers.MISSING if is_float32 else rehearsal_word(verdict),
        mood="" if is_float32 else rehearsal_mood(verdict),
        speed=quoted_speed(decision, verdict) if verdict is not None and not is_float32 else None,
        memory=quoted_memory(decision, verdict) if verdict is not None else None,
        fits=numbers.MISSING if verdict is None else fits_word(verdict),
        too_large=verdict is not None and verdict.predicted is not None and verdict.predicted.fits is False,
    )


_TARGET = Text("device", "设备")
_RECIPE = Text("recipe", "配方")
_SCALE = Text("loss scale", "损失缩放")
_ISLANDS = Text("islands", "孤岛")
_REHEARSAL = Text("rehearsal", "预演")
_SPEED = Text("speed against float32", "相对 float32 的速度")
_MEMORY = Text("peak memory", "峰值内存")
_FITS = Text("fits", "能否容纳")

#: Headings of the columns, in order.
HEADERS = (_TARGET, _RECIPE, _SCALE, _ISLANDS, _REHEARSAL, _SPEED, _MEMORY, _FITS)
