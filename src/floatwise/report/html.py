# SPDX-License-Identifier: Apache-2.0
"""A decision as one HTML file that needs nothing else: no network, no scripts, no other files."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatwise.errors import BadInputError
from floatwise.language import current_language
from floatwise.planner.decision import Decision
from floatwise.report.page import page_content, page_words
from floatwise.report.plain import plain

__all__ = ["report_html", "write_report"]

_HTML_LANGUAGES = {"en": "en", "zh": "zh-Hans"}


def write_report(
    decision: Decision, path: Path, plan_path: Path | None = None, recording_path: Path | None = None
) -> None:
    """Writes the page, whole or not at all.

    Args:
      decision: What the planner decided.
      path: Where to.
      plan_path: The plan named in the commands; by default beside the page, ending in `.toml`.
      recording_path: The recording named in them; by default beside the plan, ending in `.recording`.

    Raises:
      BadInputError: The file cannot be written there.
    """
    text = report_html(decision, plan_path or path.with_suffix(".toml"), recording_path)
    # Through a link, so that the link stays and its target is replaced.
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with unfinished.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        unfinished.replace(target)
    except OSError as error:
        remedy = "make the directory first" if not target.parent.is_dir() else "name a file that can be written"
        raise BadInputError(f"cannot write the report to {path}: {error.strerror}; {remedy}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def report_html(decision: Decision, plan_path: Path, recording_path: Path | None = None) -> str:
    """Returns the page in the current language."""
    environment = Environment(
        loader=PackageLoader("floatwise.report"),
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    template = environment.get_template("report.html.j2")
    page = page_content(decision, plan_path, recording_path or plan_path.with_suffix(".recording"))
    return template.render(page=page, words=page_words(), lang=_HTML_LANGUAGES[current_language()])


def _printable(value: object) -> object:
    """Keeps control characters and what UTF-8 cannot hold out of the page; escaping comes after."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(map(plain, value.split("\n")))
    return value
