# SPDX-License-Identifier: Apache-2.0
"""`floatwise explain`: the page behind a number format, a device or a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import UnknownNameError
from floatwise.formats import BLOCK_FORMATS, FORMATS, get_format
from floatwise.hardware import DEVICES, get_device
from floatwise.plan import RECIPES, dumps_plan, recipe
from floatwise.report import device_to_json, format_to_json, render_device, render_format

__all__ = ["explain"]


def explain(
    name: Annotated[
        str,
        typer.Argument(help="A format (bfloat16, fp8_e4m3, nvfp4), a device (T4, 'RTX 3090'), a recipe (bf16-mixed)."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the page of a number format, a device or a recipe."""
    machine, person = _page(name)
    if as_json:
        print(json.dumps(machine(), ensure_ascii=not can_print_unicode(), indent=2))
    else:
        person(Console())


def _page(name: str) -> tuple[Callable[[], dict[str, Any]], Callable[[Console], None]]:
    """Returns the page for machines and the page for people."""
    if name in RECIPES:
        return lambda: recipe(name).model_dump(mode="json"), lambda console: _render_recipe(name, console)
    if name in BLOCK_FORMATS:
        block = BLOCK_FORMATS[name]
        return lambda: format_to_json(block), lambda console: render_format(block, console)
    try:
        fmt = get_format(name)
        return lambda: format_to_json(fmt), lambda console: render_format(fmt, console)
    except UnknownNameError:
        pass
    try:
        device = get_device(name)
    except UnknownNameError as error:
        known = [*FORMATS, *BLOCK_FORMATS, *RECIPES, *DEVICES]
        raise UnknownNameError("format, device or recipe", name, known) from error
    return lambda: device_to_json(device), lambda console: render_device(device, console)


def _render_recipe(name: str, console: Console) -> None:
    console.print(name, style="bold", highlight=False)
    console.print(str(RECIPES[name]), highlight=False, markup=False)
    console.print()
    console.print(dumps_plan(recipe(name)), highlight=False, markup=False)
