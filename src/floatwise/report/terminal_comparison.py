# SPDX-License-Identifier: Apache-2.0
"""Several targets on the terminal: one table, then each target's reasons in short, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as Line

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.report import comparison, numbers, sentences, terminal_tables
from floatwise.report.comparison import TargetRow
from floatwise.report.islands import module_name
from floatwise.report.plain import plain
from floatwise.report.predictions import Quoted, prediction_notes
from floatwise.report.terminal import WIDEST, finding_line, next_steps, print_section

__all__ = ["render_comparison"]

#: Reasons shown for each target; all of them are on the page (convention: the first decide).
_MOST_REASONS = 2
#: Islands named for each target; all of them are on the page and in the plan.
_MOST_ISLANDS = 6

_COMPARED = Text("The devices compared", "各设备对比")
_KEPT = Text("in float32: {modules}", "保留 float32：{modules}")
_WHY = Text("Why", "理由")
_NEXT = Text("Next", "下一步")
_DEVICE = Text("device", "设备")
_RECIPE = Text("recipe", "配方")
_REHEARSAL = Text("rehearsal", "预演")
_SPEED = Text("speed against float32", "相对 float32 的速度")
_MEMORY = Text("peak memory", "峰值内存")
_SCALE = Text("loss scale {scale}", "损失缩放 {scale}")
_ISLANDS = Text("{n} islands", "{n} 个孤岛")

_MOOD_STYLES = {"good": "green", "bad": "red"}


def render_comparison(
    decisions: Sequence[Decision],
    console: Console,
    plan_paths: Sequence[Path],
    report_path: Path,
    recording_path: Path,
) -> None:
    """Prints the decisions for several targets for a person.

    Args:
      decisions: What the planner decided, in the order asked for.
      console: Where to; its width, colour and encoding are respected.
      plan_paths: Where the plan of each was written.
      report_path: Where the HTML page was written.
      recording_path: What they were decided from.
    """
    width = min(console.width, WIDEST)
    heading = Line(comparison.heading(decisions), style="bold green")
    lines = Group(heading, Line(comparison.subheading(decisions[0]), style="dim"))
    console.print(Panel(lines, box=box.ROUNDED, border_style="dim"), width=width, highlight=False)
    notes = (Line(note, style="dim") for note in prediction_notes(decisions))
    print_section(console, str(_COMPARED), Group(_table(decisions), *notes), width)
    print_section(console, str(_WHY), Group(*map(_reasons, decisions)), width)
    following = next_steps(decisions, plan_paths, recording_path, report_path)
    print_section(console, str(_NEXT), following, width)


def _table(decisions: Sequence[Decision]) -> Table:
    table = terminal_tables.plain_table(*map(str, (_DEVICE, _RECIPE, _REHEARSAL, _SPEED, _MEMORY)))
    for row in map(comparison.target_row, decisions):
        table.add_row(
            Line(row.target, style="bold"),
            _recipe(row),
            Line(row.rehearsal, style=_MOOD_STYLES.get(row.mood, "")),
            _quoted(row.speed),
            Group(_quoted(row.memory), *_fits(row)),
        )
    return table


def _recipe(row: TargetRow) -> RenderableType:
    lines = [Line(row.recipe, style="" if row.is_float32 else "bold green")]
    if row.loss_scale != numbers.MISSING:
        lines.append(Line(_SCALE.format(scale=row.loss_scale), style="dim"))
    if row.islands not in (numbers.MISSING, "0"):
        lines.append(Line(_ISLANDS.format(n=row.islands), style="dim"))
    return Group(*lines)


def _quoted(number: Quoted | None) -> RenderableType:
    if number is None:
        return numbers.MISSING
    return Group(Line(number.value), Line(number.beside, style="dim"), Line(number.source, style="dim"))


def _fits(row: TargetRow) -> list[Line]:
    return [] if row.fits == numbers.MISSING else [Line(row.fits, style="bold red" if row.too_large else "dim")]


def _reasons(decision: Decision) -> RenderableType:
    why = sentences.why_lines(decision)[:_MOST_REASONS]
    head: list[RenderableType] = [Line(f"{sentences.target(decision)} · {plain(decision.recipe)}", style="bold")]
    if decision.islands:
        names = [module_name(island.module) for island in decision.islands]
        more = "" if len(names) <= _MOST_ISLANDS else " …"
        head.append(Line(_KEPT.format(modules=", ".join(names[:_MOST_ISLANDS]) + more)))
    about_device = (f for f in decision.findings if f.severity == "warning" and not f.where)
    warnings = [finding_line(finding) for finding in about_device]
    return Padding(Group(*head, terminal_tables.bullets(why), *warnings), (0, 0, 1, 0))
