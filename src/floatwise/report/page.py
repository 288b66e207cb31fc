# SPDX-License-Identifier: Apache-2.0
"""What the HTML page says, as strings, figures and tables; where it stands is the template's business."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatwise._version import __version__
from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording
from floatwise.report import comparison, numbers, panels, sentences
from floatwise.report.commands import next_commands
from floatwise.report.comparison import TargetRow
from floatwise.report.page_proof import rehearsal_content
from floatwise.report.page_target import evidence_content, finding_rows, target_content
from floatwise.report.panels import Panel
from floatwise.report.products import ASKED, RAN
from floatwise.report.rehearsals import advice_lines, rehearsals, search_rows

__all__ = ["page_content", "page_words"]

_WORDS = {
    "targets": Text("The devices compared", "各设备对比"),
    "why": Text("Why", "理由"),
    "more_reasons": Text("further reasons", "其他理由"),
    "proof": Text("Measured against float32", "与 float32 的实测对比"),
    "against": Text("against float32", "相对 float32"),
    "asked": ASKED,
    "ran": RAN,
    "losses": Text("Loss of every step", "每一步的损失"),
    "rehearsals": Text("Rehearsed", "预演"),
    "final_loss": Text("final loss", "最终损失"),
    "worst_gradient": Text("worst gradient", "最差的梯度"),
    "skipped": Text("steps skipped", "跳过的步数"),
    "exponents": Text("Where the values lie", "数值分布"),
    "gradients": Text("How well gradients survive", "梯度的保真度"),
    "islands": Text("Kept in float32", "保留 float32 的模块"),
    "cost": Text("matrix FLOPs", "矩阵运算量"),
    "tried": Text("Tried as islands", "试作孤岛的模块"),
    "outcome": Text("outcome", "结果"),
    "advice": Text("What could be changed in the source instead", "也可以改动源码"),
    "memory": Text("Memory", "内存"),
    "speed": Text("Speed", "速度"),
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
    "role": Text("values", "数值"),
    "format": Text("format", "格式"),
    "to_zero": Text("to zero", "下溢为零"),
    "overflow": Text("overflow", "上溢"),
    "next": Text("What to do next", "下一步"),
    "plan": Text("The plan, as written", "计划文件内容"),
    "noscript": Text(
        "Figures are drawn by a script, which is switched off here; their numbers are in the tables.",
        "图表由脚本绘制，而此处脚本已被禁用；其数值见各表格。",
    ),
}


def page_words() -> dict[str, str]:
    """Returns the page's fixed words in the current language."""
    return {name: str(text) for name, text in _WORDS.items()}


def page_content(
    decisions: Sequence[Decision], recording: Recording, plan_paths: Sequence[Path], recording_path: Path
) -> dict[str, Any]:
    """Returns everything on the page that depends on the decisions and the recording."""
    main, found, is_alone = decisions[0], rehearsals(decisions), len(decisions) == 1
    content: dict[str, Any] = {
        **_head(decisions),
        "targets": [target_content(decision, is_alone) for decision in decisions],
        **rehearsal_content(found),
        "losses": panels.loss_panel(decisions, recording),
        "exponents": panels.exponent_panels(decisions, recording),
        "gradients": panels.gradient_panels(found),
        "tried": [row for recipe, rehearsal in found.items() for row in search_rows(recipe, rehearsal)],
        "advice": list(dict.fromkeys(line for rehearsal in found.values() for line in advice_lines(rehearsal))),
        "memory": panels.memory_panel(decisions),
        "speed": panels.speed_panel(decisions),
        "scale": panels.scale_panel(decisions, recording),
        "findings": finding_rows(decisions),
        "evidence": evidence_content(main.evidence),
        "commands": next_commands(decisions, plan_paths, recording_path),
        "footer": f"Floatwise {__version__}",
    }
    content["drawings"] = [panel.drawing for panel in _all_panels(content)]
    return content


def _head(decisions: Sequence[Decision]) -> dict[str, Any]:
    main = decisions[0]
    if len(decisions) == 1:
        return {
            "several": False,
            "title": sentences.headline(main),
            "place": sentences.place(main),
            "heading": main.recipe,
            "outcome": sentences.outcome(main),
            "subtitle": sentences.subtitle(main),
            "rows": [],
            "headers": [],
        }
    return {
        "several": True,
        "title": comparison.heading(decisions),
        "place": "",
        "heading": comparison.heading(decisions),
        "outcome": "",
        "subtitle": comparison.subheading(main),
        "rows": [_target_cells(comparison.target_row(decision)) for decision in decisions],
        "headers": [str(header) for header in comparison.HEADERS],
    }


def _target_cells(row: TargetRow) -> dict[str, Any]:
    cells = [
        {"text": row.recipe, "mood": "" if row.is_float32 else "good"},
        {"text": row.loss_scale, "mood": ""},
        {"text": row.islands, "mood": ""},
        {"text": row.rehearsal, "mood": row.mood},
        {"text": numbers.MISSING if row.speed is None else str(row.speed), "mood": ""},
        {"text": numbers.MISSING if row.memory is None else str(row.memory), "mood": ""},
        {"text": row.fits, "mood": "bad" if row.too_large else ""},
    ]
    return {"target": row.target, "cells": cells}


def _all_panels(content: dict[str, Any]) -> list[Panel]:
    single = [content[name] for name in ("losses", "memory", "speed", "scale")]
    return [panel for panel in (*single, *content["exponents"], *content["gradients"]) if panel is not None]
