# SPDX-License-Identifier: Apache-2.0
"""What rehearsals came to, in words: for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Decision, Rehearsal, Verdict
from floatwise.report import numbers
from floatwise.report.plain import plain

__all__ = [
    "RehearsalRow",
    "SearchRow",
    "advice_lines",
    "decibels",
    "rehearsal_mood",
    "rehearsal_note",
    "rehearsal_row",
    "rehearsal_word",
    "rehearsals",
    "search_rows",
]

_WORDS = {
    "accept": Text("passes", "通过"),
    "accept_with_islands": Text("passes with islands", "保留孤岛后通过"),
    "refuse": Text("refused", "不通过"),
    "failed": Text("the script fails", "脚本出错"),
    "": Text("not rehearsed", "未预演"),
}
_MOODS = {"accept": "good", "accept_with_islands": "good", "refuse": "bad", "failed": "bad"}
_OUTCOMES = {
    "passes": Text("the rehearsal passes with it", "保留后预演通过"),
    "helps": Text("helps, but more is needed", "有帮助，但还不够"),
    "no_help": Text("does not help", "没有帮助"),
    "unneeded": Text("not needed after all", "最终并不需要"),
}
_SOURCES = {
    "seeds": Text("float32 runs with other seeds", "更换随机种子的 float32 运行"),
    "permuted_reductions": Text(
        "float32 runs that add up in another order, for seeds change nothing in this script",
        "改变求和次序的 float32 运行（该脚本不受随机种子影响）",
    ),
}
_NOTE = Text(
    "A rehearsal trains the unmodified script for {steps} steps on this machine, computing as the target's matrix "
    "units would. How far a final loss may be from float32's comes from {source}.",
    "预演是在本机把未修改的脚本训练 {steps} 步，按目标设备矩阵单元的方式计算。"
    "最终损失与 float32 允许的差距由{source}得出。",
)


@dataclass(frozen=True)
class RehearsalRow:
    """One rehearsal as text.

    Attributes:
      recipe: What was rehearsed.
      word: What it came to.
      mood: `good`, `bad` or empty.
      loss: Final loss.
      allowed: How far it may be from float32's.
      float32: Float32's final loss.
      worst: The gradient furthest under what is required, or the least certain one.
      skipped: Steps skipped because of overflow.
      lines: Why, and what else was seen.
    """

    recipe: str
    word: str
    mood: str
    loss: str
    allowed: str
    float32: str
    worst: str
    skipped: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SearchRow:
    """A module that was tried as an island."""

    recipe: str
    module: str
    outcome: str
    reason: str


def rehearsals(decisions: Iterable[Decision]) -> dict[str, Rehearsal]:
    """Returns every rehearsal by its recipe; what was rehearsed does not depend on the target."""
    found: dict[str, Rehearsal] = {}
    for decision in decisions:
        for verdict in decision.verdicts:
            if verdict.rehearsal is not None:
                found.setdefault(verdict.recipe, verdict.rehearsal)
    return found


def rehearsal_word(verdict: Verdict | None) -> str:
    """Returns what the rehearsal of a recipe came to."""
    return str(_WORDS[_status(verdict)])


def rehearsal_mood(verdict: Verdict | None) -> str:
    """Returns `good`, `bad`, or nothing where there was no rehearsal."""
    return _MOODS.get(_status(verdict), "")


def _status(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.rehearsal is not None:
        return verdict.rehearsal.status
    return "failed" if any(reason.code == "rehearsal_failed" for reason in verdict.reasons) else ""


def rehearsal_row(recipe: str, rehearsal: Rehearsal) -> RehearsalRow:
    """Returns one rehearsal as text."""
    last = rehearsal.last
    float32, planned = last.final_losses
    said = [*rehearsal.reasons, *last.problems, *last.remarks]
    skipped = last.skipped_steps + last.settling_skips
    return RehearsalRow(
        recipe=plain(recipe),
        word=str(_WORDS[rehearsal.status]),
        mood=_MOODS[rehearsal.status],
        loss=numbers.quantity(planned),
        allowed=f"±{numbers.quantity(last.tolerance)}",
        float32=numbers.quantity(float32),
        worst=_worst(rehearsal),
        skipped=f"{skipped} / {len(last.losses) + last.settling_skips}" if last.losses else numbers.MISSING,
        lines=tuple(dict.fromkeys(plain(evidence) for evidence in said)),
    )


def _worst(rehearsal: Rehearsal) -> str:
    rows = [row for row in rehearsal.last.gradients if row.sqnr_db is not None and row.required_db is not None]
    if not rows:
        return numbers.MISSING
    worst = min(rows, key=lambda row: (row.sqnr_db or 0.0) - (row.required_db or 0.0))
    return f"{decibels(worst.sqnr_db)} ({plain(worst.parameter)})"


_NOT_FINITE = Text("not finite", "非有限值")
_EXACT = Text("exact", "完全一致")


def decibels(ratio: float | None) -> str:
    """Returns a signal-to-noise ratio as people read it."""
    if ratio is None:
        return numbers.MISSING
    if math.isinf(ratio):
        return str(_EXACT if ratio > 0 else _NOT_FINITE)
    return f"{ratio:.1f} dB"


def rehearsal_note(found: Sequence[Rehearsal]) -> str:
    """Returns what a rehearsal is and where its limits come from."""
    steps = max(len(rehearsal.last.losses) for rehearsal in found)
    return _NOTE.format(steps=steps, source=_SOURCES[found[0].last.spread_source])


def search_rows(recipe: str, rehearsal: Rehearsal) -> list[SearchRow]:
    """Returns every module that was tried as an island, in order."""
    return [
        SearchRow(plain(recipe), plain(tried.module) or "(root)", str(_OUTCOMES[tried.outcome]), plain(tried.reason))
        for tried in rehearsal.tried
    ]


def advice_lines(rehearsal: Rehearsal) -> list[str]:
    """Returns what could be changed in the source instead of an island."""
    return list(dict.fromkeys(plain(advice) for advice in rehearsal.advice))
