# SPDX-License-Identifier: Apache-2.0
"""A decision as one HTML file that needs nothing else: no network and no other files.

Its figures are drawn by Plotly, which is in the file. A content security policy admits these scripts by their digests
and no others, and no address at all, so that text from strangers' scripts stays text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from floatwise.errors import BadInputError
from floatwise.files import write_whole
from floatwise.language import current_language
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording
from floatwise.report.plain import plain

__all__ = ["report_html", "write_report"]

_POWER = re.compile(r"\b2\^(-?[0-9]+)")
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:%|dB|[KMGTP]?i?B|[mµn]?s)(?![A-Za-z]))")
_HTML_LANGUAGES = {"en": "en", "zh": "zh-Hans"}


def write_report(
    decisions: Sequence[Decision],
    recording: Recording,
    path: Path,
    plan_paths: Sequence[Path],
    recording_path: Path,
) -> None:
    """Writes the page, whole or not at all.

    Args:
      decisions: What the planner decided, for one target or several; the first is the main one.
      recording: What they were decided from.
      path: Where to.
      plan_paths: Where the plan of each was written.
      recording_path: Where the recording was written.

    Raises:
      BadInputError: The file cannot be written there.
    """
    write_whole(path, report_html(decisions, recording, plan_paths, recording_path), "the report")


def report_html(
    decisions: Sequence[Decision], recording: Recording, plan_paths: Sequence[Path], recording_path: Path
) -> str:
    """Returns the page in the current language; the arguments are those of `write_report`."""
    # Here, because they load Plotly, which no other command needs.
    from plotly.offline import get_plotlyjs

    from floatwise.report.drawing import drawings_json
    from floatwise.report.page import page_content, page_words

    environment = Environment(
        loader=PackageLoader("floatwise.report"),
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["powers"] = _with_powers
    page = page_content(decisions, recording, plan_paths, recording_path)
    scripts = [_script(get_plotlyjs()), _script(environment.get_template("report.js").render())]
    return environment.get_template("report.html.j2").render(
        page=page,
        words=page_words(),
        lang=_HTML_LANGUAGES[current_language()],
        drawings=Markup(drawings_json(page["drawings"])),
        scripts=scripts if page["drawings"] else [],
        digests=[_digest(script) for script in scripts],
    )


def _script(text: str) -> Markup:
    """Returns a script of ours or Plotly's as it stands between its tags: with the line ends that a browser reads."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if "</script" in text.casefold() or "<!--" in text:
        raise BadInputError("got a script that would end early inside a page; install plotly 6.0 or newer as released")
    return Markup(text)


def _digest(script: str) -> Markup:
    """Returns what the policy calls a script (Content Security Policy level 3, section 2.3.1)."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'")


def _with_powers(text: str) -> Markup:
    """Returns a text, made harmless, in which powers of two have raised exponents, and units stay with numbers."""
    return Markup(_POWER.sub(_raised, _UNIT.sub("\u00a0", str(escape(_printable(text))))))


def _raised(found: re.Match[str]) -> str:
    return f"2<sup>{found[1].replace('-', '−')}</sup>"


def _printable(value: object) -> object:
    """Keeps control characters and what UTF-8 cannot hold out of the page; escaping comes after."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(map(plain, value.split("\n")))
    return value
