# SPDX-License-Identifier: Apache-2.0
"""The tables of a decision on the terminal; cells wrap or fold, and nothing is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from floatwise.language import Text
from floatwise.planner.decision import Island, Measured, Predicted, Rehearsal, RoleRow, Verdict
from floatwise.report import numbers, proof, sentences
from floatwise.report.folding import fold_paths
from floatwise.report.islands import IslandGroup, island_groups
from floatwise.report.plain import plain
from floatwise.report.predictions import prediction_rows
from floatwise.report.products import ASKED, FORMAT, RAN, ProductRow
from floatwise.report.rehearsals import rehearsal_row

__all__ = [
    "bullets",
    "evidence",
    "islands",
    "marked",
    "plain_table",
    "predicted",
    "products",
    "rehearsals",
    "savings",
    "verdicts",
]

# A terminal shows so many patterns of one reason; the HTML page shows all modules (convention: one screen).
MOST_PATTERNS = 8

_STATUS_STYLE = {"chosen": "bold green", "accepted": "green", "refused": "red", "not_worth_it": "yellow"}


def plain_table(*headers: str, right: Sequence[int] = (), header: bool = True) -> Table:
    """Returns an empty table in the house style; `right` lists the columns that hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=header, header_style="bold dim")
    for index, name in enumerate(headers):
        table.add_column(name, justify="right" if index in right else "left", overflow="fold")
    return table


def marked(mark: str, body: RenderableType, style: str = "dim") -> Table:
    """Returns `body` behind a mark, with a hanging indent."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row(Line(mark, style=style), body)
    return grid


def bullets(lines: Sequence[str]) -> Group:
    """Returns sentences as a list."""
    return Group(*(marked("•", Line(line)) for line in lines))


_AGAINST = Text("against float32", "相对 float32")


def savings(measured: Measured, recipe: str) -> Table:
    """Returns step time and memory side by side."""
    table = plain_table("", "float32", recipe, str(_AGAINST), right=(1, 2))
    for row in proof.saving_rows(measured):
        table.add_row(row.label, row.float32, row.planned, Line(row.ratio, style="bold"))
    return table


def products(rows: Sequence[ProductRow]) -> Table:
    """Returns the formats of a step's products, as asked for and as they ran."""
    ran = any(row.ran for row in rows)
    table = plain_table(str(FORMAT), str(ASKED), *([str(RAN)] if ran else []))
    for row in rows:
        table.add_row(row.format, row.asked, *([row.ran] if ran else []))
    return table


_RECIPE = Text("recipe", "配方")
_VERDICT = Text("verdict", "结论")
_FINAL = Text("final loss", "最终损失")
_SKIPPED = Text("skipped", "跳过")
_MOOD_STYLE = {"good": "green", "bad": "red"}


def rehearsals(found: Mapping[str, Rehearsal]) -> Table:
    """Returns what the rehearsal of each recipe came to."""
    headers = (_RECIPE, _VERDICT, _FINAL, "float32", _SKIPPED)
    table = plain_table(*map(str, headers), right=(2, 3, 4))
    for row in (rehearsal_row(recipe, rehearsal) for recipe, rehearsal in found.items()):
        word = Line(row.word, style=_MOOD_STYLE.get(row.mood, ""))
        table.add_row(row.recipe, word, row.loss, f"{row.float32} {row.allowed}", row.skipped)
    return table


def predicted(prediction: Predicted, recipe: str) -> Table:
    """Returns predicted speed and memory beside float32's."""
    table = plain_table("", "float32", recipe, str(_AGAINST), right=(1, 2))
    for row in prediction_rows(prediction):
        table.add_row(row.label, row.float32, row.planned, Line(row.ratio, style="bold"))
    return table


_MODULES = Text("{n} modules", "{n} 个模块")
_MORE = Text("… and {n} more modules, listed in {report}", "……另有 {n} 个模块，见 {report}")
_EXAMPLE = Text("(said of {module}; the others are in {report})", "（针对 {module}；其余见 {report}）")


def islands(found: Sequence[Island], report_path: Path) -> Group:
    """Returns the modules that stay in float32, folded, with the reason under each group."""
    return Group(*(_island_group(group, plain(report_path)) for group in island_groups(found)))


def _island_group(group: IslandGroup, report: str) -> Group:
    folded = fold_paths(group.modules)
    shown, rest = folded[:MOST_PATTERNS], folded[MOST_PATTERNS:]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True)
    for entry in shown:
        number = _MODULES.format(n=len(entry.paths)) if len(entry.paths) > 1 else ""
        grid.add_row(Line(plain(entry.pattern), style="cyan"), Line(number, style="dim"))
    lines: list[RenderableType] = [grid]
    if rest:
        left = sum(len(entry.paths) for entry in rest)
        lines.append(Line(_MORE.format(n=left, report=report), style="dim"))
    said = [Line(group.sentence)]
    if not group.same_for_all:
        said.append(Line(_EXAMPLE.format(module=plain(group.modules[0]), report=report), style="dim"))
    lines.append(Padding(Group(*said), (0, 0, 0, 4)))
    return Group(*lines)


_WHY = Text("why", "理由")


def verdicts(judged: Sequence[Verdict]) -> Table:
    """Returns every recipe with its verdict and reasons."""
    table = plain_table(str(_RECIPE), str(_VERDICT), str(_WHY))
    for verdict in judged:
        style = _STATUS_STYLE.get(verdict.status, "")
        word = Line(sentences.status_word(verdict.status), style=style)
        table.add_row(Line(plain(verdict.recipe), style=style), word, _lines(sentences.verdict_lines(verdict)))
    return table


def _lines(lines: Sequence[str]) -> RenderableType:
    return bullets(lines) if len(lines) > 1 else Line("".join(lines))


_VALUES = Text("values", "数值")
_AMAX = Text("largest", "最大值")
_FORMAT = Text("format", "格式")
_TO_ZERO = Text("to zero", "下溢为零")
_OVERFLOW = Text("overflow", "上溢")
_SQNR = Text("SQNR", "SQNR")


def evidence(rows: Sequence[RoleRow]) -> Table:
    """Returns the evidence, a role's name and largest value once for all its formats."""
    headers = (_VALUES, _AMAX, _FORMAT, _TO_ZERO, _OVERFLOW, _SQNR)
    table = plain_table(*map(str, headers), right=(1, 3, 4, 5))
    previous = ""
    for row in rows:
        first, previous = row.role != previous, row.role
        table.add_row(
            sentences.role_name(row.role) if first else "",
            numbers.quantity(row.amax) if first else "",
            plain(row.format),
            numbers.percent(row.underflow_share),
            Line(numbers.percent(row.overflow_share), style="red" if row.overflow_share else ""),
            numbers.MISSING if row.sqnr_db is None else f"{row.sqnr_db:.0f} dB",
        )
    return table
