# SPDX-License-Identifier: Apache-2.0
"""`floatwise explain`: the page behind a number format or a device."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import UnknownNameError
from floatwise.formats import BLOCK_FORMATS, FORMATS, get_format
from floatwise.hardware import DEVICES, get_device
from floatwise.report import device_to_json, format_to_json, render_device, render_format

__all__ = ["explain"]


def explain(
    name: Annotated[str, typer.Argument(help="A format (bfloat16, fp8_e4m3, nvfp4) or a device (T4, 'RTX 3090').")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the page of a number format or a device."""
    found = BLOCK_FORMATS.get(name) or _format(name)
    if found is not None:
        if as_json:
            print(json.dumps(format_to_json(found), ensure_ascii=not can_print_unicode(), indent=2))
        else:
            render_format(found, Console())
        return
    try:
        device = get_device(name)
    except UnknownNameError as error:
        raise UnknownNameError("format or device", name, [*FORMATS, *BLOCK_FORMATS, *DEVICES]) from error
    if as_json:
        print(json.dumps(device_to_json(device), ensure_ascii=not can_print_unicode(), indent=2))
    else:
        render_device(device, Console())


def _format(name: str):  # type: ignore[no-untyped-def]
    try:
        return get_format(name)
    except UnknownNameError:
        return None
