# SPDX-License-Identifier: Apache-2.0
"""What an exporter is: a system with its rows, its writing and its reading back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from floatwise.exporters.knob import Knob
from floatwise.exporters.settings import Settings
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.model import Plan
from floatwise.plan.problems import Loc

__all__ = ["Finding", "Loss", "Option", "Reading", "Refusal", "Remark", "Request", "System"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """What to export beyond the plan, such as a ZeRO stage.

    Attributes:
      name: Its name as a flag without dashes.
      choices: The values allowed.
      default: The value when none is given.
      meaning: What it decides.
    """

    name: str
    choices: tuple[Any, ...]
    default: Any
    meaning: Text


@dataclass(frozen=True)
class Request:
    """What is wanted of an exporter.

    Attributes:
      version: The system's version to write for.
      form: The form to write: a key of `System.forms`.
      options: A value for every option of the system.
    """

    version: Version
    form: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What becomes of a value of the plan that the system cannot hold.

    Attributes:
      paths: Globs over the paths of `floatwise.plan.diff_plans`, such as `loss_scale.growth` or `modules*`.
      what: What is lost or changed; `{before}` and `{after}` stand for the plan's value and the system's.
      instead: How to get it otherwise; None where nothing is missed.
      when: The request this row is for; None for all.
      before: The row is for this value of the plan only; None for all.
      after: The row is for this value read back only; None for all.
      is_record: True for what describes where the plan came from and changes nothing in training.
    """

    paths: tuple[str, ...]
    what: Text
    instead: Text | None = None
    when: Callable[[Request], bool] | None = None
    before: Any = None
    after: Any = None
    is_record: bool = False

    def covers(self, path: str, before: Any, after: Any, request: Request) -> bool:
        """Returns whether the row speaks of this change."""
        return (
            any(fnmatchcase(path, glob) for glob in self.paths)
            and (self.when is None or self.when(request))
            and (self.before is None or self.before == before)
            and (self.after is None or self.after == after)
        )


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A plan that the system would train wrongly, or not at all.

    Attributes:
      when: Whether it concerns this plan and request.
      what: What would happen.
      instead: What to do.
      source: Where it is known from: issue, file and version, or measurement.
      since: First version concerned; empty for all before `until`.
      until: First version that is right again; empty when none is known.
    """

    when: Callable[[Plan, Request], bool]
    what: Text
    instead: Text
    source: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """What the reader of an exported configuration should know, though nothing of the plan is lost.

    Attributes:
      when: Whether it concerns this plan and request.
      what: The fact and what to do.
      source: Where it is known from.
      since: First version concerned.
      until: First version not concerned any more.
    """

    when: Callable[[Plan, Request], bool]
    what: Text
    source: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True)
class Finding:
    """Something in a configuration that is accepted by the system and needs action.

    Attributes:
      code: Short name in kebab case.
      loc: Where in the settings.
      what: What is there and what it does.
      do: What to write instead.
    """

    code: str
    loc: Loc
    what: Text
    do: Text


@dataclass(frozen=True)
class Reading:
    """A configuration understood.

    Attributes:
      plan: The nearest plan.
      findings: What is dangerous in it, and what the plan had to assume or could not say.
    """

    plan: Plan
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class System:
    """A trainer or library whose configuration can be written and read.

    Attributes:
      name: As in `--to`.
      title: As people write it.
      summary: What is exported, in a sentence.
      distribution: The package whose version counts; empty when it is on no index.
      read_version: The version that the rows were read from, taken when none is installed and none is given.
      oldest: The oldest version the rows are right for.
      forms: Default file name by form, the preferred form first.
      options: What else can be chosen.
      knobs: Its keys by path.
      closed: See `check_knobs`.
      others: See `check_knobs`.
      stand_ins: Values that are written only so that the file can be loaded, by their paths: a user's own value stays
        when a file is merged.
      refusals: Plans it would train wrongly.
      losses: What becomes of each value of a plan that it cannot hold.
      remarks: What to know beside that.
      write: The plan as values of its configuration, or as text where the form is `python`.
      read: Settings that passed `check_knobs` to the nearest plan. Raises `SettingsProblems` for values that
        contradict each other.
      recognises: How surely settings are this system's, from 0 (not) to 1.
    """

    name: str
    title: str
    summary: Text
    distribution: str
    read_version: str
    oldest: str
    forms: Mapping[str, str]
    options: tuple[Option, ...] = ()
    knobs: Mapping[str, Knob]
    closed: tuple[str, ...] = ()
    others: Iterable[str] = ()
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    losses: tuple[Loss, ...]
    remarks: tuple[Remark, ...] = ()
    write: Callable[[Plan, Request], Mapping[str, Any] | str]
    read: Callable[[Settings, Version], Reading]
    recognises: Callable[[Settings], float]
