# SPDX-License-Identifier: Apache-2.0
"""A configuration of another system read: which system's it is, every fault with its line, and the nearest plan."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from floatwise.errors import BadFileError
from floatwise.exporters.flag_knob import typed_flags
from floatwise.exporters.forms import FORMS, form_of_file
from floatwise.exporters.forms.parsed import FormError
from floatwise.exporters.knob import check_knobs
from floatwise.exporters.settings import Settings, SettingsProblems, printable
from floatwise.exporters.system import Reading, System
from floatwise.exporters.version import Version
from floatwise.plan.layout import FILE_BEGINS

__all__ = ["load_settings", "read_settings", "read_text", "recognise", "settings_of_text"]

# A configuration is a few KiB; a training script may be longer. Past this it is data given by mistake. Convention.
_MAX_BYTES = 4 * 2**20


def settings_of_text(text: str, form: str, source: str = "<string>") -> Settings:
    """Returns the settings in a text.

    Raises:
      BadFileError: The text is not of its form; the message begins with `source:line:`.
    """
    try:
        parsed = FORMS[form].parse(text)
    except FormError as error:
        raise BadFileError(f"{printable(source)}:{error.line}: {printable(error.what)}") from None
    return Settings(parsed.values, parsed.lines, source, form, parsed.calls)


def load_settings(path: str | os.PathLike[str], form: str | None = None) -> Settings:
    """Returns the settings in a file.

    Args:
      path: The file.
      form: How it is written; None to go by the end of its name, and else by its beginning.

    Raises:
      BadFileError: There is no such file, or it is none of the forms.
    """
    source = os.fspath(path)
    text = read_text(path)
    if not text.strip():
        raise BadFileError(f"{printable(source)}:1: the file is empty")
    if text.startswith(FILE_BEGINS):
        raise BadFileError(f"{printable(source)}:1: this is a plan of Floatwise, not the configuration of a system")
    chosen = FORMS[form] if form else form_of_file(source)
    name = chosen.name if chosen else "json" if text.lstrip().startswith("{") else "yaml"
    return replace(settings_of_text(text, name, source), files=str(Path(path).parent))


def read_settings(settings: Settings, system: System, version: Version) -> Reading:
    """Returns what `settings` mean for `system`.

    Raises:
      BadFileError: Values are wrong, or contradict each other; each line begins with `path:line:`.
    """
    closed = system.closed
    if settings.form == "flags" and "flags" not in system.forms:
        settings = typed_flags(settings, system.knobs)
        closed = ()  # the flags of the script itself are among them
    problems = list(
        check_knobs(settings, system.knobs, version, closed=closed, others=system.others, title=system.title)
    )
    if problems:
        raise settings.bad_file(problems)
    try:
        return system.read(settings, version)
    except SettingsProblems as error:
        raise settings.bad_file(error.problems) from None


def recognise(settings: Settings, systems: Iterable[System]) -> System:
    """Returns the system that `settings` are of.

    Raises:
      BadFileError: No system has such settings.
    """
    systems = list(systems)
    best = max(systems, key=lambda system: system.recognises(settings))
    if best.recognises(settings) <= 0:
        known = ", ".join(system.name for system in systems)
        raise BadFileError(
            f"{printable(settings.source)}:1: this is no configuration of a system known here; name it with --from: "
            f"{known}"
        )
    return best


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a file.

    Raises:
      BadFileError: It cannot be read, is larger than any configuration, or no UTF-8.
    """
    source = printable(os.fspath(path)).replace("\n", "\\n")
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadFileError(f"{source}: there is no such file") from None
    except IsADirectoryError:
        raise BadFileError(f"{source}:1: this is a directory; name the file in it") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadFileError(f"{source}:1: cannot be read: {why}") from None
    if len(data) > _MAX_BYTES:
        raise BadFileError(f"{source}:1: larger than {_MAX_BYTES >> 20} MiB, which no configuration is")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise BadFileError(f"{source}:{line}: this is a binary file, not a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = data[error.start : error.end].hex(" ")
        raise BadFileError(f"{source}:{line}: got the byte {got}, which is not UTF-8; save the file as UTF-8") from None
