# SPDX-License-Identifier: Apache-2.0
"""What the page says of one target: its decision, its islands, its verdicts, its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatwise.language import Text
from floatwise.plan import dumps_plan
from floatwise.planner.decision import Decision, RoleRow, Verdict
from floatwise.report import numbers, sentences
from floatwise.report.chosen import chosen_verdict
from floatwise.report.folding import fold_paths
from floatwise.report.islands import IslandGroup, island_groups, module_name
from floatwise.report.page_proof import proof_content, tiles

__all__ = ["evidence_content", "finding_rows", "target_content"]

#: Reasons of one among several targets that are shown at once (convention: the first decide).
_MOST_REASONS = 3


def target_content(decision: Decision, is_alone: bool) -> dict[str, Any]:
    """Returns what is said of one target.

    Args:
      decision: What was decided for it.
      is_alone: Whether the page has no others; of one among several it is not said that nothing was measured.
    """
    proof, reasons = proof_content(decision), sentences.why_lines(decision)
    return {
        "name": sentences.target(decision),
        "recipe": decision.recipe,
        "outcome": sentences.outcome(decision),
        "reasons": reasons[: None if is_alone else _MOST_REASONS],
        "more_reasons": [] if is_alone else reasons[_MOST_REASONS:],
        "tiles": tiles(decision),
        **proof,
        "is_proved": bool(proof["proof"]) and (is_alone or decision.measured is not None),
        **_islands(decision),
        "loss_scale": sentences.loss_scale_sentence(decision.loss_scale) if decision.loss_scale else "",
        "verdicts": [_verdict(verdict) for verdict in decision.verdicts],
        "plan": dumps_plan(decision.plan),
    }


_MODULES = Text("{n} modules", "{n} 个模块")
_EXAMPLE = Text("(said of {module}; the others are listed below)", "（针对 {module}；其余见下方列表）")
_ALL_ISLANDS = Text("All {n} modules", "全部 {n} 个模块")


def _islands(decision: Decision) -> dict[str, Any]:
    islands, shares, groups = decision.islands, _flops_shares(decision), island_groups(decision.islands)
    return {
        "island_groups": [_island_group(group, shares) for group in groups],
        "islands_summary": _ALL_ISLANDS.format(n=len(islands)),
        "islands_cost": bool(shares),
        "islands": _each_island(decision, shares) if len(islands) > len(groups) else [],
    }


def _each_island(decision: Decision, shares: Mapping[str, float]) -> list[dict[str, str]]:
    names = ((module_name(island.module), str(island.reason)) for island in decision.islands)
    return [{"module": name, "reason": reason, "share": numbers.percent(shares.get(name))} for name, reason in names]


def _flops_shares(decision: Decision) -> dict[str, float]:
    """Returns what the islands that a rehearsal found cost; of others it is not known."""
    verdict = chosen_verdict(decision)
    rehearsal = verdict.rehearsal if verdict is not None else None
    return {module_name(i.module): i.flops_share for i in rehearsal.islands} if rehearsal is not None else {}


def _island_group(group: IslandGroup, shares: Mapping[str, float]) -> dict[str, Any]:
    patterns = [
        {
            "pattern": entry.pattern,
            "note": _MODULES.format(n=len(entry.paths)) if len(entry.paths) > 1 else "",
        }
        for entry in fold_paths(group.modules)
    ]
    said_of = "" if group.same_for_all else _EXAMPLE.format(module=group.modules[0])
    known = [shares[path] for path in group.modules if path in shares]
    share = numbers.percent(sum(known)) if known else numbers.MISSING
    return {"patterns": patterns, "sentence": group.sentence, "note": said_of, "share": share}


_VERDICT_MOODS = {"chosen": "good", "accepted": "good", "refused": "bad", "not_worth_it": "warn"}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "recipe": verdict.recipe,
        "word": sentences.status_word(verdict.status),
        "mood": _VERDICT_MOODS.get(verdict.status, ""),
        "lines": sentences.verdict_lines(verdict),
    }


_WARNING = Text("warning", "警告")
_NOTE = Text("note", "提示")


def finding_rows(decisions: Sequence[Decision]) -> list[dict[str, str]]:
    """Returns what was found, each finding once, warnings first."""
    findings = [finding for decision in decisions for finding in decision.findings]
    found = dict.fromkeys((finding.severity, finding.where, str(finding.reason)) for finding in findings)
    rows = [_finding(severity, where, reason) for severity, where, reason in found]
    return sorted(rows, key=lambda row: row["severity"] != "warning")


def _finding(severity: Any, where: str, reason: str) -> dict[str, str]:
    word = _WARNING if severity == "warning" else _NOTE
    return {"severity": severity, "word": str(word), "where": where, "reason": reason}


_LARGEST = Text("largest {amax} in", "最大值 {amax}，位于")


def evidence_content(rows: Sequence[RoleRow]) -> list[dict[str, Any]]:
    """Returns the evidence by role."""
    by_role: dict[str, list[RoleRow]] = {}
    for row in rows:
        by_role.setdefault(row.role, []).append(row)
    return [_evidence_role(role, found) for role, found in by_role.items()]


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
