# SPDX-License-Identifier: Apache-2.0
"""What to type after a decision."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report.plain import plain

__all__ = ["Command", "next_commands"]

# Two common devices of different generations: one of them is mostly not asked about already.
_OTHER_TARGETS = ("nvidia-t4", "nvidia-h100")

_RUN = Text("trains the unmodified script under the plan", "按该计划训练未修改的脚本")
_RUN_THERE = Text(
    "on {target}: trains the unmodified script under its plan", "在 {target} 上：按其计划训练未修改的脚本"
)
_ELSEWHERE = Text(
    "asks the same for another device, from what was recorded; nothing runs again",
    "利用已录制的数据判断另一种设备，无需重新运行",
)


@dataclass(frozen=True)
class Command:
    """A command line, quoted for a POSIX shell, and what it is for."""

    line: str
    purpose: str


def next_commands(decisions: Sequence[Decision], plan_paths: Sequence[Path], recording_path: Path) -> list[Command]:
    """Returns the commands that follow from the decisions, the most useful first.

    Args:
      decisions: One for each target.
      plan_paths: The plan of each.
      recording_path: What they were decided from.
    """
    commands = []
    for decision, plan_path in zip(decisions, plan_paths, strict=True):
        if not decision.plan.is_float32:
            own = ("--", *decision.arguments) if decision.arguments else ()
            run = ("floatwise", "run", decision.script, "--plan", str(plan_path), *own)
            purpose = str(_RUN) if len(decisions) == 1 else _RUN_THERE.format(target=plain(decision.target_name))
            commands.append(Command(_quoted(run), purpose))
    asked = {decision.target for decision in decisions}
    others = [name for name in _OTHER_TARGETS if name not in asked]
    if others:
        plan = ("floatwise", "plan", "--recording", str(recording_path), "--target", others[0])
        commands.append(Command(_quoted(plan), str(_ELSEWHERE)))
    return commands


def _quoted(words: tuple[str, ...]) -> str:
    return plain(shlex.join(words))
