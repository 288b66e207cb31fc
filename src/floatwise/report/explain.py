# SPDX-License-Identifier: Apache-2.0
"""The pages of `floatwise explain` behind a format and a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from floatwise.formats import BlockFormat, Format, format_facts
from floatwise.hardware import Device, device_advice, device_facts
from floatwise.language import Text
from floatwise.planner.decision_json import json_value
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST

__all__ = ["device_to_json", "facts_table", "format_to_json", "render_device", "render_format"]

_USE = Text("Good for", "用途")
_PITFALLS = Text("Beware", "注意")

# What follows from a row, beside its fields.
_SCALAR_FACTS = (
    "max",
    "smallest_normal",
    "smallest_subnormal",
    "epsilon",
    "flush_threshold",
    "overflow_threshold",
    "overflow_inclusive",
    "dynamic_range_log2",
    "storage_bytes",
)
_BLOCK_FACTS = ("max", "bits_per_element", "block_range_log2", "storage_bytes")


def render_format(fmt: Format | BlockFormat, console: Console) -> None:
    """Prints what a number format is, what it is good for, and what to beware of."""
    sentences = ((_USE, str(fmt.use)), (_PITFALLS, str(fmt.pitfalls)))
    _print(console, fmt.name, facts_table(format_facts(fmt)), sentences)


def render_device(device: Device, console: Console) -> None:
    """Prints what is known about a device."""
    _print(console, device.name, facts_table(device_facts(device)), ())


def facts_table(facts: Iterable[tuple[Text, str]]) -> Table:
    """Returns labelled facts in two columns; facts without a value are left out."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(plain(name), Line(plain(value)))
    return table


def _print(console: Console, title: str, facts: Table, sentences: Iterable[tuple[Text, str]]) -> None:
    parts: list[RenderableType] = [Line(plain(title), style="bold"), _indented(facts)]
    for heading, sentence in sentences:
        parts += [Line(), Line(str(heading), style="bold"), _indented(Line(plain(sentence)))]
    for part in parts:
        console.print(part, width=min(console.width, WIDEST), highlight=False)


def _indented(body: RenderableType) -> Padding:
    return Padding(body, (0, 0, 0, 2))


def format_to_json(fmt: Format | BlockFormat) -> dict[str, Any]:
    """Returns a format's row and what follows from it; null where float64 cannot hold a value."""
    row = {field.name: getattr(fmt, field.name) for field in fields(fmt)}
    if isinstance(fmt, BlockFormat):
        row |= {"element": fmt.element.name, "scale": fmt.scale.name}
    derived = _BLOCK_FACTS if isinstance(fmt, BlockFormat) else _SCALAR_FACTS
    return _json_object({**row, **{name: getattr(fmt, name) for name in derived}})


def device_to_json(device: Device) -> dict[str, Any]:
    """Returns a device's row, with the advice that follows from it."""
    row = {field.name: getattr(device, field.name) for field in fields(device)}
    matrix = {
        name: {field.name: getattr(path, field.name) for field in fields(path)} for name, path in device.matrix.items()
    }
    return _json_object({**row, "matrix": matrix, "advice": device_advice(device)})


def _json_object(values: dict[str, Any]) -> dict[str, Any]:
    return {name: json_value(value) for name, value in values.items()}
