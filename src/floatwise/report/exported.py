# SPDX-License-Identifier: Apache-2.0
"""What `floatwise export` says beside the configuration it writes: what is lost, and what to know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from floatwise.exporters import Exported, Note
from floatwise.exporters.export import version_for
from floatwise.exporters.system import System
from floatwise.exporters.version import installed_version
from floatwise.language import Text
from floatwise.plan import Plan
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST, print_section
from floatwise.report.terminal_tables import marked

__all__ = ["exported_to_json", "render_export_notes", "render_systems", "systems_to_json"]

_TITLE = Text("{recipe} for {title} {version}", "{recipe}，用于 {title} {version}")
_LOST = Text("Lost or changed", "丢失或改变的内容")
_KNOW = Text("To know", "须知")
_NOTHING = Text("Nothing of the plan is lost.", "计划的内容没有任何丢失。")
_SYSTEM = Text("system", "系统")
_VERSION = Text("version", "版本")
_FORMS = Text("forms", "形式")
_OPTIONS = Text("options", "选项")
_WHAT = Text("what is written", "写出的内容")
_INSTALLED = Text("{version} installed", "已安装 {version}")
_READ = Text("{version} as read", "按 {version} 的源码")


def render_export_notes(exported: Exported, plan: Plan, title: str, console: Console) -> None:
    """Prints what is lost, changed or to be known.

    Args:
      exported: What was written.
      plan: What it was written from.
      title: The system as people write it.
      console: Where to.
    """
    width = min(console.width, WIDEST)
    named = _TITLE.format(recipe=plan.recipe, title=title, version=exported.version)
    console.print(Line(plain(named), style="bold"), width=width, highlight=False)
    lost = [note for note in exported.notes if note.fields]
    known = [note for note in exported.notes if not note.fields]
    if lost:
        print_section(console, str(_LOST), Group(*map(_note, lost)), width)
    else:
        console.print(Line(str(_NOTHING), style="dim"), width=width)
    if known:
        print_section(console, str(_KNOW), Group(*map(_note, known)), width)


def exported_to_json(exported: Exported) -> dict[str, Any]:
    """Returns what was written and said as JSON values, sentences in the current language."""
    return {
        "system": exported.system,
        "version": exported.version,
        "form": exported.form,
        "file_name": exported.file_name,
        "text": exported.text,
        "notes": [
            {
                "fields": list(note.fields),
                "what": str(note.what),
                "instead": str(note.instead) if note.instead is not None else None,
                "changes_training": bool(note.fields) and not note.is_record,
            }
            for note in exported.notes
        ],
    }


def render_systems(systems: Iterable[System], console: Console) -> None:
    """Prints the systems that plans can be exported to."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for heading in (_SYSTEM, _WHAT, _VERSION, _FORMS, _OPTIONS):
        table.add_column(str(heading), overflow="fold")
    for system in systems:
        options = "\n".join(f"{o.name} {'|'.join(map(str, o.choices))}" for o in system.options)
        table.add_row(system.name, str(system.summary), _version(system), "\n".join(system.forms), options)
    console.print(table, highlight=False)


def systems_to_json(systems: Iterable[System]) -> list[dict[str, Any]]:
    """Returns the systems as JSON values."""
    return [
        {
            "name": system.name,
            "title": system.title,
            "summary": str(system.summary),
            "version": str(version_for(system)),
            "oldest": system.oldest,
            "forms": dict(system.forms),
            "options": {
                o.name: {"choices": list(o.choices), "default": o.default, "meaning": str(o.meaning)}
                for o in system.options
            },
        }
        for system in systems
    ]


def _version(system: System) -> str:
    found = installed_version(system.distribution) if system.distribution else None
    if found is None:
        return _READ.format(version=system.read_version)
    return _INSTALLED.format(version=found)


def _note(note: Note) -> RenderableType:
    lines: list[RenderableType] = []
    if note.fields:
        lines.append(Line(plain(", ".join(note.fields)), style="cyan"))
    lines.append(Line(plain(note.what)))
    if note.instead is not None:
        lines.append(Padding(Line(plain(note.instead), style="dim"), (0, 0, 0, 2)))
    mark, style = ("!", "bold yellow") if note.fields and not note.is_record else ("·", "dim")
    return marked(mark, Group(*lines), style)
