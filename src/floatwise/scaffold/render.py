# SPDX-License-Identifier: Apache-2.0
"""The files of a project as text, from templates and exporters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from floatwise.exporters import Note, export_plan, get_system
from floatwise.language import Text
from floatwise.plan import dumps_plan
from floatwise.scaffold.answers import Answers
from floatwise.scaffold.choices import Choices
from floatwise.scaffold.file_texts import COMMON_FILES
from floatwise.scaffold.framework import ONE_PROCESS
from floatwise.scaffold.pins import PINS

__all__ = ["Rendered", "render"]

_TEMPLATES = Path(__file__).parent / "templates"
_COMMON = {
    "data.py": "common/data.py.j2",
    "check.py": "common/check.py.j2",
    "test.py": "common/test.py.j2",
    "requirements.txt": "common/requirements.txt.j2",
}


@dataclass(frozen=True)
class Rendered:
    """A project before it is written.

    Attributes:
      files: Text by file name, the README first.
      notes: What the framework's configuration cannot say of the plan; what to know about it, the templates see to.
    """

    files: Mapping[str, str]
    notes: tuple[Note, ...]


def render(answers: Answers, choices: Choices) -> Rendered:
    """Returns all files of the project.

    Raises:
      PlanError: The framework would train the plan wrongly or not at all.
    """
    row = answers.row
    files = {"precision.toml": dumps_plan(choices.plan)}
    files |= {name: dumps_plan(plan) for name, plan in choices.extra_plans.items()}
    notes: list[Note] = []
    for config in row.configs(answers, choices):
        with _speaking(answers.language):
            exported = export_plan(
                config.plan or choices.plan, get_system(config.system), form=config.form, options=config.options
            )
        files[config.name] = config.wrap(exported.text) if config.wrap else exported.text
        notes += [note for note in exported.notes if note.fields and not note.is_record and note not in notes]
    templates = {**row.templates(answers, choices), **_COMMON}
    context = _context(answers, choices, tuple(notes))
    for name, template in templates.items():
        files[name] = _environment().get_template(template).render(context)
    context["files"] = _file_rows(answers, files)
    readme = _environment().get_template("common/README.md.j2").render(context)
    return Rendered({"README.md": readme, **files}, tuple(notes))


@contextmanager
def _speaking(language: str) -> Iterator[None]:
    """Exporters write comments in the current language; the project's may be another."""
    before = os.environ.get("FLOATWISE_LANG")
    os.environ["FLOATWISE_LANG"] = language
    try:
        yield
    finally:
        if before is None:
            del os.environ["FLOATWISE_LANG"]
        else:
            os.environ["FLOATWISE_LANG"] = before


def _context(answers: Answers, choices: Choices, notes: tuple[Note, ...]) -> dict[str, object]:
    row = answers.row
    language = answers.language

    def say(text: Text) -> str:
        return str(getattr(text, language))

    return {
        "a": answers,
        "c": choices,
        "plan": choices.plan,
        "row": row,
        "device": answers.device_row,
        "t": lambda en, zh: say(Text(en, zh)),
        "say": say,
        "launch_one": row.launch_one(answers),
        "launch_many": row.launch_many(answers),
        "launcher": row.launcher(answers),
        "is_parallel": row.launcher(answers) != ONE_PROCESS,
        "requirements": _requirements(answers),
        "cpu_exception": row.cpu_exception(answers, choices),
        "notes": notes,
        "host_notes": row.notes(answers, choices),
        "find_nan": "find_nan.py" in row.templates(answers, choices),
        "files": (),
    }


def _requirements(answers: Answers) -> list[str]:
    packages = dict.fromkeys(answers.row.packages(answers))
    packages.setdefault("numpy")
    if answers.task == "image" and answers.data:
        packages.setdefault("pillow")
    elif answers.task != "text" and not answers.data:
        packages.setdefault("scikit-learn")
    return [line for package in packages for line in PINS[package]]


def _file_rows(answers: Answers, files: Mapping[str, str]) -> list[tuple[str, str]]:
    texts = {**COMMON_FILES, **answers.row.file_texts}
    ordered = [name for name in texts if name in files] + [name for name in files if name not in texts]
    return [(name, str(getattr(texts[name], answers.language)) if name in texts else "") for name in ordered]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,  # Python, TOML and Markdown, not HTML
    )
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
