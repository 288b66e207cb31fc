# SPDX-License-Identifier: Apache-2.0
"""`floatwise info`: what is on this machine and what it can do."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.unicode import can_print_unicode
from floatwise.report import gather_info, info_to_json, render_info

__all__ = ["info"]


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show this machine's devices, what they compute in hardware, and the frameworks installed."""
    gathered = gather_info()
    if as_json:
        print(json.dumps(info_to_json(gathered), ensure_ascii=not can_print_unicode(), indent=2))
    else:
        render_info(gathered, Console())
