# SPDX-License-Identifier: Apache-2.0
"""What to type after a decision."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report.plain import plain

__all__ = ["Command", "next_commands"]

# Two common devices of different generations: at least one of them is not the target already asked about.
_OTHER_TARGETS = ("nvidia-t4", "nvidia-h100")

_RUN = Text("trains the unmodified script under the plan", "按该计划训练未修改的脚本")
_ELSEWHERE = Text(
    "asks the same for another device, from what was recorded; nothing runs again",
    "利用已录制的数据判断另一种设备，无需重新运行",
)


@dataclass(frozen=True)
class Command:
    """A command line, quoted for a POSIX shell, and what it is for."""

    line: str
    purpose: str


def next_commands(decision: Decision, plan_path: Path, recording_path: Path) -> list[Command]:
    """Returns the commands that follow from the decision, the most useful first."""
    target = next(name for name in _OTHER_TARGETS if name != decision.target)
    commands = []
    if not decision.plan.is_float32:
        own = ("--", *decision.arguments) if decision.arguments else ()
        run = ("floatwise", "run", decision.script, "--plan", str(plan_path), *own)
        commands.append(Command(_quoted(run), str(_RUN)))
    plan = ("floatwise", "plan", "--recording", str(recording_path), "--target", target)
    return [*commands, Command(_quoted(plan), str(_ELSEWHERE))]


def _quoted(words: tuple[str, ...]) -> str:
    return plain(shlex.join(words))
