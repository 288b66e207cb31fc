# SPDX-License-Identifier: Apache-2.0
"""A decision on the terminal: the answer, then why, the proof, the exceptions, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text as Line

from floatwise.language import Text
from floatwise.planner.decision import Decision, Finding, LossParity
from floatwise.report import proof, sentences, terminal_tables
from floatwise.report.chosen import chosen_verdict
from floatwise.report.commands import next_commands
from floatwise.report.plain import plain
from floatwise.report.predictions import prediction_notes
from floatwise.report.products import product_note, product_rows
from floatwise.report.rehearsals import rehearsal_note, rehearsals

__all__ = ["WIDEST", "finding_line", "next_steps", "print_section", "render_decision"]

# Longer lines are hard to read back from (convention: 100 to 120 characters).
WIDEST = 110

_WHY = Text("Why", "理由")
_MEASURED = Text("Measured against float32", "与 float32 的实测对比")
_PRODUCTS = Text("What the products compute in", "乘法实际使用的格式")
_PROOF = Text("Is the loss the same?", "损失是否一致？")
_REHEARSED = Text("Rehearsed", "预演")
_PREDICTED = Text("Predicted for {target}", "对 {target} 的预测")
_ISLANDS = Text("Kept in float32", "保留 float32 的模块")
_SCALE = Text("Loss scale", "损失缩放")
_FINDINGS = Text("Found in the script", "脚本中的发现")
_VERDICTS = Text("The recipes compared", "各配方对比")
_EVIDENCE = Text("What the values do in each format, without scaling", "数值在各格式中的表现（未缩放）")
_NEXT = Text("Next", "下一步")
_PAGE = Text("the whole report, with figures", "完整报告，含图表")


def render_decision(
    decision: Decision,
    console: Console,
    plan_path: Path,
    report_path: Path,
    recording_path: Path | None = None,
) -> None:
    """Prints the decision for a person.

    Args:
      decision: What the planner decided.
      console: Where to; its width, colour and encoding are respected.
      plan_path: Where the plan was written.
      report_path: Where the HTML page was written.
      recording_path: Where the recording was written; by default beside the plan, ending in `.recording`.
    """
    width = min(console.width, WIDEST)
    recording = recording_path or plan_path.with_suffix(".recording")
    console.print(_answer(decision), width=width, highlight=False)
    for title, body in _sections(decision, report_path):
        print_section(console, str(title), body, width)
    print_section(console, str(_NEXT), next_steps([decision], [plan_path], recording, report_path), width)


def print_section(console: Console, title: str, body: RenderableType, width: int) -> None:
    """Prints a part of the answer under its title."""
    console.print()
    console.print(Line(title, style="bold"), width=width, highlight=False)
    console.print(Padding(body, (0, 0, 0, 2)), width=width, highlight=False)


def _answer(decision: Decision) -> Panel:
    style = "bold" if decision.plan.is_float32 else "bold green"
    lines = Group(Line(sentences.headline(decision), style=style), Line(sentences.subtitle(decision), style="dim"))
    return Panel(lines, box=box.ROUNDED, border_style="dim")


def _sections(decision: Decision, report_path: Path) -> Iterator[tuple[Text | str, RenderableType]]:
    why = sentences.why_lines(decision)
    if why:
        yield _WHY, terminal_tables.bullets(why)
    if decision.measured is not None or not decision.plan.is_float32:
        yield _MEASURED, _comparison(decision)
    if decision.measured is not None:
        yield _PROOF, _parity(decision, decision.measured.loss_parity)
    products = product_rows(decision.measured if decision.here else None)
    if products and decision.measured is not None:
        note = Line(product_note(decision.measured), style="dim")
        yield _PRODUCTS, Group(terminal_tables.products(products), note)
    found = rehearsals([decision])
    if found:
        note = Line(rehearsal_note(list(found.values())), style="dim")
        yield _REHEARSED, Group(terminal_tables.rehearsals(found), note)
    predicted = _predicted(decision)
    if predicted is not None:
        yield _PREDICTED.format(target=plain(decision.target_name)), predicted
    if decision.islands:
        yield _ISLANDS, terminal_tables.islands(decision.islands, report_path)
    if decision.loss_scale is not None:
        yield _SCALE, Line(sentences.loss_scale_sentence(decision.loss_scale))
    if decision.findings:
        yield _FINDINGS, Group(*(finding_line(finding) for finding in decision.findings))
    if decision.verdicts:
        yield _VERDICTS, terminal_tables.verdicts(decision.verdicts)
    if decision.evidence:
        yield _EVIDENCE, terminal_tables.evidence(decision.evidence)


def _comparison(decision: Decision) -> RenderableType:
    if decision.measured is None or not decision.here:
        return Line(proof.not_run_sentences(decision))
    table = terminal_tables.savings(decision.measured, proof.planned_name(decision))
    return Group(table, Line(proof.saving_note(decision.measured), style="dim"))


def _predicted(decision: Decision) -> RenderableType | None:
    verdict = chosen_verdict(decision)
    if verdict is None or verdict.predicted is None or decision.plan.is_float32:
        return None
    notes = (Line(note, style="dim") for note in prediction_notes([decision]))
    return Group(terminal_tables.predicted(verdict.predicted, plain(decision.recipe)), *notes)


def _parity(decision: Decision, parity: LossParity | None) -> Line:
    style = "" if parity is None or parity.within_spread else "bold red"
    return Line(proof.parity_sentences(parity, proof.planned_name(decision)), style=style)


def finding_line(finding: Finding) -> RenderableType:
    """Returns a finding with its mark, and where it is."""
    mark, style = ("!", "bold yellow") if finding.severity == "warning" else ("·", "dim")
    said = Line(plain(finding.reason))
    body = Group(Line(plain(finding.where), style="cyan"), said) if finding.where else said
    return terminal_tables.marked(mark, body, style)


def next_steps(
    decisions: Sequence[Decision], plan_paths: Sequence[Path], recording: Path, report_path: Path
) -> RenderableType:
    """Returns what to type next, and where the page is."""
    lines: list[RenderableType] = []
    for command in next_commands(decisions, plan_paths, recording):
        lines += [Line(command.line, style="cyan"), Padding(Line(command.purpose, style="dim"), (0, 0, 0, 4))]
    lines += [Line(plain(report_path), style="cyan"), Padding(Line(str(_PAGE), style="dim"), (0, 0, 0, 4))]
    return Group(*lines)
