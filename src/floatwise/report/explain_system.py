# SPDX-License-Identifier: Apache-2.0
"""The pages of `floatwise explain` behind another system and one of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text as Line

from floatwise.exporters.knob import Knob
from floatwise.exporters.system import System
from floatwise.language import Text
from floatwise.report.explain import facts_table
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST

__all__ = ["knob_to_json", "render_knob", "render_system", "system_to_json"]

_DEFAULT = Text("default", "默认值")
_VALUES = Text("values", "取值")
_VERSIONS = Text("versions", "版本")
_SOURCE = Text("source", "来源")
_WHY = Text("why this range", "范围的理由")
_SINCE = Text("since {version}", "自 {version} 起")
_BEFORE = Text("before {version}", "{version} 之前")


def render_system(system: System, console: Console) -> None:
    """Prints what is exported to a system, and its keys that have to do with precision."""
    width = min(console.width, WIDEST)
    console.print(Line(plain(system.title), style="bold"), width=width, highlight=False)
    console.print(Padding(Line(plain(system.summary)), (0, 0, 0, 2)), width=width, highlight=False)
    for knob in system.knobs.values():
        row = Group(Line(plain(knob.key), style="cyan"), Padding(Line(plain(knob.meaning)), (0, 0, 0, 2)))
        console.print(Padding(row, (0, 0, 0, 2)), width=width, highlight=False)


def render_knob(system: System, knob: Knob, console: Console) -> None:
    """Prints what a key does, takes and defaults to."""
    width = min(console.width, WIDEST)
    console.print(Line(plain(f"{system.title}: {knob.key}"), style="bold"), width=width, highlight=False)
    console.print(Padding(Line(plain(knob.meaning)), (0, 0, 0, 2)), width=width, highlight=False)
    console.print(Padding(facts_table(_facts(knob)), (0, 0, 0, 2)), width=width, highlight=False)


def system_to_json(system: System) -> dict[str, Any]:
    """Returns a system and its keys as JSON values."""
    knobs = {key: knob_to_json(knob) for key, knob in system.knobs.items()}
    return {"name": system.name, "title": system.title, "summary": str(system.summary), "keys": knobs}


def knob_to_json(knob: Knob) -> dict[str, Any]:
    """Returns a key's row as JSON values."""
    return {
        "meaning": str(knob.meaning),
        "values": knob.expected,
        "default": knob.default,
        "why": knob.why or None,
        "since": knob.since or None,
        "until": knob.until or None,
        "source": knob.source,
    }


def _facts(knob: Knob) -> Iterator[tuple[Text, str]]:
    yield _VALUES, knob.expected
    yield _DEFAULT, "" if knob.default is None else str(knob.default)
    limits = [_SINCE.format(version=knob.since)] if knob.since else []
    limits += [_BEFORE.format(version=knob.until)] if knob.until else []
    yield _VERSIONS, ", ".join(limits)
    yield _WHY, knob.why
    yield _SOURCE, knob.source
