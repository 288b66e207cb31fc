# SPDX-License-Identifier: Apache-2.0
"""`floatwise import`: what another system's configuration means, and the nearest plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from floatwise.cli.configurations import read_configurations
from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import BadInputError
from floatwise.plan import save_plan
from floatwise.report import imported_to_json, render_imported

__all__ = ["import_config"]


def import_config(
    files: Annotated[
        list[Path],
        typer.Argument(help="Configuration files or Python source; several of one training are held together."),
    ],
    system: Annotated[
        str | None, typer.Option("--from", help="Whose configuration it is. Default: by its content.")
    ] = None,
    for_version: Annotated[
        str | None, typer.Option(help="Read as this version of the system. Default: the installed one.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Plan file to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the plan file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say what another system's configuration means; exit code 1 when something in it is dangerous."""
    if output is not None and output.suffix != ".toml":
        raise BadInputError(f"{output}: a plan file's name ends in .toml; try -o {output.with_suffix('.toml')}")
    if output is not None and output.exists() and not force:
        raise BadInputError(f"{output}: there is such a file; --force replaces it, or choose another -o")
    found = read_configurations(files, system, for_version)
    if output is not None:
        save_plan(found[-1].reading.plan, output)
    if as_json:
        values = {"files": [imported_to_json(one) for one in found], "written": str(output) if output else None}
        print(json.dumps(values, ensure_ascii=not can_print_unicode(), indent=2))
    else:
        console = Console()
        for one in found:
            decides = one is found[-1]
            render_imported(one, console, "" if decides else found[-1].settings.source)
            if not decides:
                console.print()
        if output is not None:
            print(output)
    raise typer.Exit(1 if any(one.reading.findings for one in found) else 0)
