# SPDX-License-Identifier: Apache-2.0
"""`floatwise export`: the plan as another system's configuration, and what is lost on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from floatwise.cli.plan_source import plan_from
from floatwise.cli.unicode import can_print_unicode
from floatwise.errors import BadInputError
from floatwise.exporters import SYSTEMS, Exported, export_plan, get_system
from floatwise.exporters.forms import form_of_file
from floatwise.exporters.merge import has_comments, merged_text
from floatwise.exporters.system import System
from floatwise.files import write_whole
from floatwise.language import Text
from floatwise.report import exported_to_json, render_export_notes, render_systems, systems_to_json
from floatwise.report.plain import plain

__all__ = ["export"]

_NO_COMMENTS = Text(
    "{file}: its comments are gone: the merged file is written anew, keys and values alone.",
    "{file}：其中的注释已丢失：合并后的文件是重新写出的，只含键和值。",
)


def export(
    to: Annotated[str | None, typer.Option("--to", help="The system to write for; --list shows all.")] = None,
    plan: Annotated[Path | None, typer.Option("-p", "--plan", help="Plan file. Default: precision.toml.")] = None,
    recipe_name: Annotated[str | None, typer.Option("--recipe", help="A recipe instead of a plan file.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write. Default: stdout.")] = None,
    stage: Annotated[int | None, typer.Option(help="DeepSpeed's ZeRO stage: 0 to 3.")] = None,
    fsdp: Annotated[int | None, typer.Option(help="Accelerate's FSDP version: 1 or 2; 0 for none.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("-O", "--option", help="Any other option of the system, as NAME=VALUE.")
    ] = None,
    form: Annotated[str | None, typer.Option(help="json, yaml, python or flags. Default: the output's ending.")] = None,
    for_version: Annotated[
        str | None, typer.Option(help="Write for this version of the system. Default: the installed one.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Keep the other keys of the file that is there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Show the systems, their forms and options.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write a plan as the configuration of another trainer or library."""
    if show_list:
        _list(as_json)
        return
    if to is None:
        raise BadInputError(f"got no system; give --to with one of: {', '.join(SYSTEMS)}")
    if output is None and (merge or force):
        raise BadInputError(f"got --{'merge' if merge else 'force'} and no file; name it with -o")
    system = get_system(to)
    chosen = plan_from(plan, recipe_name)
    if form is None and output is not None:
        form = _form(system, output)
    exported = export_plan(
        chosen, system, version=for_version, form=form, options=_options(system, stage, fsdp, option or [])
    )
    had_comments = output is not None and merge and has_comments(output, exported.form)
    text = exported.text if output is None else _written(exported, system, output, merge, force)
    if had_comments:
        print(_NO_COMMENTS.format(file=plain(output)), file=sys.stderr)
    if as_json:
        values = exported_to_json(exported) | {"text": text, "written": str(output) if output else None}
        print(json.dumps(values, ensure_ascii=not can_print_unicode(), indent=2))
        return
    if output is None:
        print(text, end="")
    render_export_notes(exported, chosen, system.title, Console(stderr=output is None))
    if output is not None:
        print(output)


def _list(as_json: bool) -> None:
    if as_json:
        print(json.dumps(systems_to_json(SYSTEMS.values()), ensure_ascii=not can_print_unicode(), indent=2))
    else:
        render_systems(SYSTEMS.values(), Console())


def _form(system: System, output: Path) -> str | None:
    """Returns the form that the ending of the output's name stands for."""
    if output.suffix == ".toml":
        usual = next(iter(system.forms.values()))
        raise BadInputError(f"{output}: a name that ends in .toml is that of a plan; name a file such as {usual}")
    found = form_of_file(str(output))
    if found is None:
        return None
    if found.name not in system.forms:
        endings = " or ".join(system.forms.values())
        raise BadInputError(
            f"{output}: {system.title} is not configured in {found.name}; name a file such as {endings}, or give --form"
        )
    return found.name


def _options(system: System, stage: int | None, fsdp: int | None, given: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInputError(f"got --option {text}; write --option NAME=VALUE")
        _add(values, name.strip(), value.strip())
    for name, number in (("stage", stage), ("fsdp", fsdp)):
        if number is not None:
            _add(values, name, number)
    for row in system.options:
        if row.name in values:
            # On the command line everything is text; the choices say what it should be.
            values[row.name] = next((c for c in row.choices if str(c) == str(values[row.name])), values[row.name])
    return values


def _add(values: dict[str, Any], name: str, value: Any) -> None:
    if name in values and str(values[name]) != str(value):
        raise BadInputError(f"got the option {name} twice, as {values[name]} and {value}; give it once")
    values[name] = value


def _written(exported: Exported, system: System, output: Path, merge: bool, force: bool) -> str:
    """Writes the configuration and returns what was written."""
    text = exported.text
    if merge and force:
        raise BadInputError("got both --merge and --force; give one of them")
    if output.exists() and not output.is_file() and not output.is_dir():
        # A device would be replaced by a file: /dev/null, for all who use it.
        raise BadInputError(f"{output}: no plain file; without -o the configuration goes to stdout")
    if output.exists() and not output.is_dir():
        if merge:
            text = merged_text(output, exported, system)
        elif not force:
            raise BadInputError(f"{output}: there is such a file; --merge keeps its other keys, --force replaces it")
    write_whole(output, text, "the configuration")
    return text
