# SPDX-License-Identifier: Apache-2.0
"""`floatwise new`: asks what is to be trained, and writes a project that trains at once."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from floatwise.cli.questions import ask_for
from floatwise.cli.unicode import can_print_unicode
from floatwise.language import Text
from floatwise.scaffold import Answers, Choices, choose, render, write_project
from floatwise.scaffold.project import check_folder
from floatwise.scaffold.render import Rendered

__all__ = ["new"]

_DECIDED = Text("Decided", "已决定")
_LOST = Text("What the configuration cannot say", "配置无法表达的内容")
_FILES = Text("Written to {folder}", "已写入 {folder}")
_NEXT = Text("Next", "下一步")


def new(
    folder: Annotated[Path, typer.Argument(help="Where the project goes: a new or empty folder.")] = Path("training"),
    framework: Annotated[
        str | None, typer.Option(help="pytorch, trainer, accelerate, lightning, deepspeed, keras, flax.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="For keras: tensorflow, jax, torch.")] = None,
    parallel: Annotated[str | None, typer.Option(help="single, ddp, fsdp2, zero1, zero2, zero3.")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small, medium, large.")] = None,
    task: Annotated[str | None, typer.Option(help="image, text, tabular.")] = None,
    trouble: Annotated[str | None, typer.Option(help="none, oom, nan, slow.")] = None,
    device: Annotated[str | None, typer.Option(help="Device to train on: t4, 'RTX 3090', cpu, here.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many devices.")] = None,
    data: Annotated[str | None, typer.Option(help="Your data. Default: a set that a package brings.")] = None,
    language: Annotated[str | None, typer.Option(help="Of comments and README: en, zh. Default: this one.")] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Take the defaults for what is not given.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write a training project with its precision decided: script, plan, configuration, check and test.

    Asks for what no option gives; --yes takes defaults instead.
    """
    check_folder(folder)
    given: dict[str, Any] = {
        "framework": framework,
        "backend": backend,
        "parallel": parallel,
        "gpus": gpus,
        "device": device,
        "size": size,
        "task": task,
        "trouble": trouble,
        "data": data,
        "language": language,
    }
    given = {name: value for name, value in given.items() if value is not None}
    answers = Answers(**given) if yes else Answers(**ask_for(given, Console(stderr=True)))
    choices = choose(answers)
    rendered = render(answers, choices)
    paths = write_project(folder, rendered.files)
    commands = _commands(answers, folder)
    if as_json:
        values = _to_json(answers, choices, rendered, folder, paths, commands)
        print(json.dumps(values, ensure_ascii=not can_print_unicode(), indent=2))
    else:
        _show(answers, choices, rendered, folder, commands, Console(soft_wrap=False))


def _commands(answers: Answers, folder: Path) -> list[str]:
    commands = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    commands += ["pip install -r requirements.txt", "python test.py"]
    row = answers.row
    commands.append(row.launch_one(answers) if answers.parallel == "single" else row.launch_many(answers))
    commands.append("python check.py")
    return commands


def _to_json(
    answers: Answers, choices: Choices, rendered: Rendered, folder: Path, paths: list[Path], commands: list[str]
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "answers": asdict(answers),
        "recipe": choices.plan.recipe,
        "parameters": choices.parameters,
        "micro_batch": choices.micro_batch,
        "accumulation": choices.accumulation,
        "state_bytes_per_device": choices.memory.total,
        "reasons": [str(reason) for reason in choices.reasons],
        "notes": [
            {
                "fields": list(note.fields),
                "what": str(note.what),
                "instead": str(note.instead) if note.instead else None,
            }
            for note in rendered.notes
        ],
        "files": [str(path) for path in paths],
        "commands": commands,
    }


def _show(
    answers: Answers, choices: Choices, rendered: Rendered, folder: Path, commands: list[str], console: Console
) -> None:
    what = [answers.framework, answers.backend, answers.parallel, f"{answers.gpus} x {answers.device_row.name}"]
    what += [answers.task, answers.size, choices.plan.recipe]
    console.print(f"[bold]{escape(' · '.join(part for part in what if part))}[/bold]", highlight=False)
    _list(console, str(_DECIDED), [str(reason) for reason in choices.reasons])
    lost = [f"{note.what} {note.instead or ''}".strip() for note in rendered.notes if note.fields]
    lost += [str(note.what) for note in rendered.notes if not note.fields]
    if lost:
        _list(console, str(_LOST), lost)
    _list(console, _FILES.format(folder=folder), [", ".join(rendered.files)])
    console.print(f"\n[bold]{escape(str(_NEXT))}[/bold]")
    for command in commands:
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


def _list(console: Console, title: str, sentences: list[str]) -> None:
    console.print(f"\n[bold]{escape(title)}[/bold]", highlight=False)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row("  -", escape(sentence))
    console.print(table, highlight=False)
