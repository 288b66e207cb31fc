# SPDX-License-Identifier: Apache-2.0
"""A plan written for another system, and what is lost, found by reading it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.errors import BadInputError, PlanError, UnknownNameError
from floatwise.exporters.forms import FORMS
from floatwise.exporters.read import read_settings, settings_of_text
from floatwise.exporters.settings import printable
from floatwise.exporters.system import Loss, Reading, Request, System
from floatwise.exporters.version import Version, installed_version
from floatwise.language import Text
from floatwise.plan.diff import Change, diff_plans
from floatwise.plan.model import Plan

__all__ = ["Exported", "Note", "export_plan", "version_for"]


@dataclass(frozen=True)
class Note:
    """What the reader of an exported configuration should know.

    Attributes:
      fields: The values of the plan that are lost or changed, by the paths of `diff_plans`; empty for remarks.
      what: What becomes of them.
      instead: How to get it otherwise; None where nothing is missed.
      is_record: True when only the description of the plan's origin is lost.
    """

    fields: tuple[str, ...]
    what: Text
    instead: Text | None = None
    is_record: bool = False


@dataclass(frozen=True)
class Exported:
    """A plan as another system's configuration.

    Attributes:
      system: The system's name.
      version: The version it is written for.
      form: `json`, `yaml`, `python` or `flags`.
      file_name: What such a file is usually called.
      text: The configuration.
      notes: What is lost, changed or to be known.
      reading: The text read back.
    """

    system: str
    version: str
    form: str
    file_name: str
    text: str
    notes: tuple[Note, ...]
    reading: Reading


def version_for(system: System, wanted: str | None = None) -> Version:
    """Returns the version to write or read for: the wanted one, else the installed one, else the one that was read.

    Raises:
      BadInputError: The wanted version is older than the tables reach.
    """
    version = Version.of(wanted) if wanted else installed_version(system.distribution) if system.distribution else None
    version = version or Version.of(system.read_version)
    if version < Version.of(system.oldest):
        how = "" if wanted else " (installed here)"
        raise BadInputError(
            f"got {system.title} {version}{how}; its keys are known from {system.oldest} on: upgrade it, or "
            f"name a newer one with --for-version {system.read_version}"
        )
    return version


def export_plan(
    plan: Plan,
    system: System,
    *,
    version: str | None = None,
    form: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Exported:
    """Writes a plan as the configuration of another system.

    Args:
      plan: What to write.
      system: For whom.
      version: The system's version; None for the installed one, or the one whose source was read.
      form: One of `system.forms`; None for the first.
      options: Values of `system.options` that differ from their defaults.

    Raises:
      PlanError: The system would train the plan wrongly or not at all.
      BadInputError: An option, form or version is not allowed.
    """
    form = form or next(iter(system.forms))
    if form not in system.forms:
        raise UnknownNameError(f"form of {system.title}'s configuration", form, system.forms)
    request = Request(version_for(system, version), form, _options(system, options or {}))
    _refuse(plan, system, request)
    content = system.write(plan, request)
    if isinstance(content, str):
        text = content
    else:
        dump = FORMS[form].dump
        assert dump is not None, f"{system.name} writes {form} itself"
        text = dump(content)
    settings = settings_of_text(text, form, source=system.forms[form])
    reading = read_settings(settings, system, request.version)
    notes = [*_losses(plan, system, request, diff_plans(plan, reading.plan)), *_remarks(plan, system, request)]
    return Exported(system.name, str(request.version), form, system.forms[form], text, tuple(notes), reading)


def _options(system: System, given: Mapping[str, Any]) -> dict[str, Any]:
    values = {option.name: option.default for option in system.options}
    for name, value in given.items():
        option = next((o for o in system.options if o.name == name), None)
        if option is None:
            known = ", ".join(o.name for o in system.options) or "none"
            raise BadInputError(f"got the option {printable(name)} = {value!r}; {system.title} has: {known}")
        if value not in option.choices:
            allowed = " or ".join(str(c) for c in option.choices)
            raise BadInputError(f"got {name} = {value!r}, expected {allowed}; it is {option.meaning}")
        values[name] = value
    return values


def _refuse(plan: Plan, system: System, request: Request) -> None:
    rows = [r for r in system.refusals if request.version.within(r.since, r.until) and r.when(plan, request)]
    if rows:
        reasons = "\n".join(f"  - {row.what}\n    {row.instead}\n    ({row.source})" for row in rows)
        raise PlanError(f"{system.title} {request.version} would not train this plan as it says:\n{reasons}")


def _losses(plan: Plan, system: System, request: Request, changes: tuple[Change, ...]) -> list[Note]:
    """Groups the changes by the row that explains them, in the order of the rows."""
    grouped: dict[int, list[Change]] = {}
    for change in changes:
        grouped.setdefault(_row(change, system, request), []).append(change)
    return [_note(system.losses[index], grouped[index]) for index in sorted(grouped)]


def _row(change: Change, system: System, request: Request) -> int:
    for index, row in enumerate(system.losses):
        if row.covers(change.path, change.before, change.after, request):
            return index
    raise AssertionError(
        f"{system.name} {request} changes {change.path} from {change.before!r} to {change.after!r} and does not say so"
    )


def _note(row: Loss, changes: list[Change]) -> Note:
    first = changes[0]
    fields = tuple(change.path for change in changes)
    return Note(fields, _filled(row.what, first), row.instead and _filled(row.instead, first), row.is_record)


def _filled(text: Text, change: Change) -> Text:
    values = {"before": _shown(change.before), "after": _shown(change.after)}
    return Text(text.en.format(**values), text.zh.format(**values))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _remarks(plan: Plan, system: System, request: Request) -> list[Note]:
    rows = [r for r in system.remarks if request.version.within(r.since, r.until) and r.when(plan, request)]
    return [Note((), row.what) for row in rows]
