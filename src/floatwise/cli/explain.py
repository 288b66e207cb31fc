# SPDX-License-Identifier: Apache-2.0
"""`floatwise explain`: the page behind a number format, a device, a recipe, or another system's keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import UnknownNameError
from floatwise.exporters import SYSTEMS
from floatwise.exporters.system import System
from floatwise.formats import BLOCK_FORMATS, FORMATS, get_format
from floatwise.hardware import DEVICES, get_device
from floatwise.plan import RECIPES, dumps_plan, recipe
from floatwise.report import (
    device_to_json,
    format_to_json,
    knob_to_json,
    render_device,
    render_format,
    render_knob,
    render_system,
    system_to_json,
)

__all__ = ["explain"]


def explain(
    name: Annotated[
        str,
        typer.Argument(
            help="A format (bfloat16, fp8_e4m3, nvfp4), a device (T4, 'RTX 3090'), a recipe (bf16-mixed), a system "
            "(deepspeed) or its key (deepspeed.fp16.loss_scale)."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the page of a number format, a device, a recipe, or another system and its keys."""
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
    whose, _, key = name.partition(".")
    if whose in SYSTEMS:
        return _system_page(SYSTEMS[whose], key)
    try:
        fmt = get_format(name)
        return lambda: format_to_json(fmt), lambda console: render_format(fmt, console)
    except UnknownNameError:
        pass
    try:
        device = get_device(name)
    except UnknownNameError as error:
        known = [*FORMATS, *BLOCK_FORMATS, *RECIPES, *DEVICES, *SYSTEMS]
        raise UnknownNameError("format, device, recipe or system", name, known) from error
    return lambda: device_to_json(device), lambda console: render_device(device, console)


def _system_page(system: System, key: str) -> tuple[Callable[[], dict[str, Any]], Callable[[Console], None]]:
    if not key:
        return lambda: system_to_json(system), lambda console: render_system(system, console)
    knob = system.knobs.get(key)
    if knob is None:
        raise UnknownNameError(f"key of {system.title}", key, system.knobs)
    return lambda: knob_to_json(knob), lambda console: render_knob(system, knob, console)


def _render_recipe(name: str, console: Console) -> None:
    console.print(name, style="bold", highlight=False)
    console.print(str(RECIPES[name]), highlight=False, markup=False)
    console.print()
    console.print(dumps_plan(recipe(name)), highlight=False, markup=False)
