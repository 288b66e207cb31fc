# SPDX-License-Identifier: Apache-2.0
"""What the HTML page says, as strings and charts; where it stands is the template's business."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatwise._version import __version__
from floatwise.formats import FORMATS
from floatwise.language import Text
from floatwise.plan import dumps_plan
from floatwise.planner.decision import Decision, Finding, RoleRow, Verdict
from floatwise.report import numbers, sentences
from floatwise.report.commands import next_commands
from floatwise.report.folding import fold_paths
from floatwise.report.islands import IslandGroup, island_groups, module_name
from floatwise.report.page_proof import proof_content
from floatwise.report.range_chart import range_chart
from floatwise.report.scale_chart import loss_scale_chart

__all__ = ["page_content", "page_words"]

_WORDS = {
    "why": Text("Why", "理由"),
    "proof": Text("Measured against float32", "与 float32 的实测对比"),
    "against": Text("against float32", "相对 float32"),
    "losses": Text("Loss of every step", "每一步的损失"),
    "band": Text("float32's own spread of the final loss", "float32 最终损失的自身波动范围"),
    "islands": Text("Kept in float32", "保留 float32 的模块"),
    "modules": Text("modules", "模块"),
    "module": Text("module", "模块"),
    "reason": Text("why", "理由"),
    "scale": Text("Loss scale", "损失缩放"),
    "findings": Text("Found in the script", "脚本中的发现"),
    "severity": Text("severity", "级别"),
    "where": Text("where", "位置"),
    "found": Text("what", "内容"),
    "verdicts": Text("The recipes compared", "各配方对比"),
    "recipe": Text("recipe", "配方"),
    "verdict": Text("verdict", "结论"),
    "evidence": Text("What the values do in each format, without scaling", "数值在各格式中的表现（未缩放）"),
    "range": Text(
        "A bar is what a format can hold, lighter where it has fewer digits; a dot is the largest value of a "
        "role. Right of a bar's end is overflow.",
        "横条是格式可表示的范围，浅色部分有效位数减少；圆点是各类数值的最大值。超出横条右端即为上溢。",
    ),
    "role": Text("values", "数值"),
    "format": Text("format", "格式"),
    "to_zero": Text("to zero", "下溢为零"),
    "overflow": Text("overflow", "上溢"),
    "next": Text("What to do next", "下一步"),
    "plan": Text("The plan, as written", "计划文件内容"),
}


def page_words() -> dict[str, str]:
    """Returns the page's fixed words in the current language."""
    return {name: str(text) for name, text in _WORDS.items()}


def page_content(decision: Decision, plan_path: Path, recording_path: Path) -> dict[str, Any]:
    """Returns everything on the page that depends on the decision."""
    return {
        "headline": sentences.headline(decision),
        "place": sentences.place(decision),
        "recipe": decision.recipe,
        "outcome": sentences.outcome(decision),
        "subtitle": sentences.subtitle(decision),
        "reasons": sentences.why_lines(decision),
        **proof_content(decision),
        **_islands(decision),
        **_scale(decision),
        "findings": [_finding(finding) for finding in decision.findings],
        "verdicts": [_verdict(verdict) for verdict in decision.verdicts],
        **_evidence(decision.evidence),
        "commands": next_commands(decision, plan_path, recording_path),
        "plan": dumps_plan(decision.plan),
        "footer": f"Floatwise {__version__}",
    }


_MODULES = Text("{n} modules", "{n} 个模块")
_EXAMPLE = Text("(said of {module}; the others are listed below)", "（针对 {module}；其余见下方列表）")
_ALL_ISLANDS = Text("All {n} modules", "全部 {n} 个模块")


def _islands(decision: Decision) -> dict[str, Any]:
    islands = decision.islands
    return {
        "island_groups": [_island_group(group) for group in island_groups(islands)],
        "islands_summary": _ALL_ISLANDS.format(n=len(islands)),
        "islands": [{"module": module_name(island.module), "reason": str(island.reason)} for island in islands],
    }


def _island_group(group: IslandGroup) -> dict[str, Any]:
    patterns = [
        {
            "pattern": entry.pattern,
            "note": _MODULES.format(n=len(entry.paths)) if len(entry.paths) > 1 else "",
        }
        for entry in fold_paths(group.modules)
    ]
    said_of = "" if group.same_for_all else _EXAMPLE.format(module=group.modules[0])
    return {"patterns": patterns, "sentence": group.sentence, "note": said_of}


def _scale(decision: Decision) -> dict[str, Any]:
    choice = decision.loss_scale
    return {
        "loss_scale": sentences.loss_scale_sentence(choice) if choice else "",
        "loss_scale_chart": loss_scale_chart(choice) if choice else "",
    }


_WARNING = Text("warning", "警告")
_NOTE = Text("note", "提示")


def _finding(finding: Finding) -> dict[str, str]:
    word = _WARNING if finding.severity == "warning" else _NOTE
    return {
        "severity": finding.severity,
        "word": str(word),
        "where": finding.where,
        "reason": str(finding.reason),
    }


_VERDICT_MOODS = {"chosen": "good", "accepted": "good", "refused": "bad", "not_worth_it": "warn"}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "recipe": verdict.recipe,
        "word": sentences.status_word(verdict.status),
        "mood": _VERDICT_MOODS.get(verdict.status, ""),
        "lines": sentences.verdict_lines(verdict),
    }


def _evidence(rows: Sequence[RoleRow]) -> dict[str, Any]:
    names = dict.fromkeys(row.format for row in rows)
    formats = [FORMATS[name] for name in names if name in FORMATS]
    by_role: dict[str, list[RoleRow]] = {}
    for row in rows:
        by_role.setdefault(row.role, []).append(row)
    return {
        "evidence": [_evidence_role(role, found) for role, found in by_role.items()],
        "range_chart": range_chart(rows, formats) if formats else "",
    }


_LARGEST = Text("largest {amax} in", "最大值 {amax}，位于")


def _evidence_role(role: str, rows: Sequence[RoleRow]) -> dict[str, Any]:
    return {
        "name": sentences.role_name(role),
        "largest": _LARGEST.format(amax=numbers.quantity(rows[0].amax)),
        "worst": rows[0].worst_module,
        "rows": [_evidence_row(row) for row in rows],
    }


def _evidence_row(row: RoleRow) -> dict[str, Any]:
    return {
        "format": row.format,
        "to_zero": numbers.percent(row.underflow_share),
        "overflow": numbers.percent(row.overflow_share),
        "overflows": row.overflow_share > 0,
        "sqnr": numbers.MISSING if row.sqnr_db is None else f"{row.sqnr_db:.0f} dB",
    }
