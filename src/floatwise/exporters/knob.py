# SPDX-License-Identifier: Apache-2.0
"""A key of another system: what it takes, since which version, what it means; and how settings are checked."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from floatwise.errors import nearest_names
from floatwise.exporters.settings import UNKNOWN, Call, Dotted, Settings
from floatwise.exporters.version import Version
from floatwise.language import Text
from floatwise.plan.problems import Loc, Problem

__all__ = ["Kind", "Knob", "check_knobs", "knob_table"]

Kind = Literal["bool", "int", "float", "str", "list", "table", "name", "any"]

_EXPECTED: Mapping[str, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "table": "a table",
    "name": "a name such as torch.bfloat16",
    "any": "anything",
}


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A key that has to do with precision.

    Attributes:
      key: Its path with dots, as in `fp16.loss_scale`; for an argument of a call, `GradScaler.init_scale`.
      kind: What values it takes.
      meaning: What it does, for the reader.
      source: File and version this row was read from, or the measurement.
      default: The system's own default; None where it has none, or where the default is None.
      choices: The only values allowed; empty for no such limit.
      minimum: Smallest value allowed, in the unit of the key.
      maximum: Largest value allowed.
      above: Value that must be exceeded.
      below: Value that must not be reached.
      why: Why values outside the limits go wrong, to be read after "why: ".
      none: True when None (null) may be given.
      auto: True when the text "auto" is allowed in a file that another system reads (`Settings.beneath`).
      since: First version that has the key; empty for all versions read.
      until: First version that has it no more; empty when it is still there.
      instead: What to write where the key is missing or gone.
    """

    key: str
    kind: Kind
    meaning: Text
    source: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    why: str = ""
    none: bool = False
    auto: bool = False
    since: str = ""
    until: str = ""
    instead: str = ""

    def fault(self, value: Any) -> str | None:
        """Returns what is wrong with a value; None when nothing is, or when only running would tell."""
        if value is UNKNOWN or isinstance(value, Call) or (value is None and self.none):
            return None
        if isinstance(value, Dotted) and self.kind not in ("name", "any") and value.last not in ("True", "False"):
            return None  # a variable of the script
        if isinstance(value, Dotted) and self.choices and "." not in value:
            return f"got {value}, which is known only when the script runs; write {self.expected}"
        if not self._is_kind(value):
            return self._sentence(value, self.expected)
        if self.choices and value not in self.choices:
            near = nearest_names(value, [c for c in self.choices if isinstance(c, str)]) if _is_text(value) else []
            offer = f"; did you mean {near[0]!r}?" if near else ""
            return self._sentence(value, self.expected) + offer
        if isinstance(value, int | float) and not isinstance(value, bool) and not self._in_range(value):
            return self._sentence(value, self.expected)
        return None

    def _is_kind(self, value: Any) -> bool:
        if self.kind == "any":
            return True
        if self.kind == "bool":
            return isinstance(value, bool)
        if self.kind == "int":
            return isinstance(value, int) and not isinstance(value, bool)
        if self.kind == "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and _is_float64(value)
        if self.kind == "list":
            return isinstance(value, list | tuple)
        if self.kind == "table":
            return isinstance(value, Mapping)
        return isinstance(value, str)

    def _in_range(self, value: float) -> bool:
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    @property
    def expected(self) -> str:
        """What values are allowed, in words."""
        if self.choices:
            return " or ".join(_shown(choice) for choice in self.choices)
        limits = (
            ("from", self.minimum),
            ("above", self.above),
            ("to" if self.minimum is not None else "up to", self.maximum),
            ("below", self.below),
        )
        return " ".join(
            [_EXPECTED[self.kind], *(f"{word} {_limit(limit)}" for word, limit in limits if limit is not None)]
        )

    def _sentence(self, value: Any, expected: str) -> str:
        why = f"\n    why: {self.why}" if self.why else ""
        return f"got {_shown(value)}, expected {expected}{why}"


def knob_table(*rows: Knob) -> Mapping[str, Knob]:
    """Returns the rows by key.

    Raises:
      ValueError: Two rows have the same key.
    """
    table: dict[str, Knob] = {}
    for row in rows:
        if row.key in table:
            raise ValueError(f"two rows for {row.key!r}")
        table[row.key] = row
    return table


def check_knobs(
    settings: Settings,
    knobs: Mapping[str, Knob],
    version: Version,
    *,
    closed: Sequence[str] = (),
    others: Iterable[str] = (),
    title: str = "this system",
) -> Iterator[Problem]:
    """Yields what is wrong with each single value of `settings`.

    Args:
      settings: What was read.
      knobs: The rows by key.
      version: The system's version.
      closed: Tables, by their paths with dots ("" is the top, which Python source has not), whose keys are all in
        `knobs` or `others`; a key of theirs that is in neither is unknown. For calls: the names of the calls.
      others: Further legal keys, by their paths with dots, that have nothing to do with precision.
      title: The system's name for messages.
    """
    others = frozenset(others)
    if settings.form == "python":
        closed = [table for table in closed if table]
    # The names of calls are no keys of a file.
    known = [key for key in (*knobs, *others) if settings.form == "python" or not key[:1].isupper()]
    reported: set[Loc] = set()
    for loc, value in settings.leaves():
        path = ".".join(str(part) for part in loc)
        knob = knobs.get(path)
        if knob is None:
            problem = _unknown(loc, known, closed, title)
            if problem and problem.loc not in reported:
                reported.add(problem.loc)
                yield problem
            continue
        if not version.within(knob.since, knob.until):
            yield Problem(loc, _not_in_version(knob, version, title))
        elif value == "auto" and knob.kind != "any" and "auto" not in knob.choices:
            if not (settings.beneath and knob.auto):
                yield Problem(loc, _auto(knob, settings.beneath, title))
        elif fault := knob.fault(value):
            yield Problem(loc, fault)


def _unknown(loc: Loc, known: list[str], closed: Sequence[str], title: str) -> Problem | None:
    """Finds the outermost key on the way to `loc` that nothing known begins with, inside a closed table."""
    for depth in range(len(loc)):
        table = ".".join(str(part) for part in loc[:depth])
        here = ".".join(str(part) for part in loc[: depth + 1])
        if any(name == here or name.startswith(f"{here}.") for name in known):
            if here in known:
                return None  # a value of a known key, such as a table of free content
            continue
        if table not in closed:
            return None
        prefix = f"{table}." if table else ""
        names = sorted({name[len(prefix) :].partition(".")[0] for name in known if name.startswith(prefix)})
        near = nearest_names(str(loc[depth]), names)
        offer = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known here: {_listed(names)}"
        return Problem(loc[: depth + 1], f"{title} knows no such key; {offer}")
    return None


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 16 else f"{len(names)} keys, such as {', '.join(names[:8])}"


def _not_in_version(knob: Knob, version: Version, title: str) -> str:
    when = f"since {knob.since}" if knob.since and version < Version.of(knob.since) else f"before {knob.until} only"
    return f"{title} {version} does not have this key; it is there {when}" + (
        f": {knob.instead}" if knob.instead else ""
    )


def _auto(knob: Knob, beneath: str, title: str) -> str:
    if beneath:
        return f'got "auto", which {beneath} does not fill in for this key; expected {knob.expected}'
    return (
        f'got "auto" in a file that {title} reads by itself, where nothing fills it in: expected {knob.expected}; '
        "only Hugging Face Trainer and Accelerate replace it"
    )


def _limit(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"2**{exponent - 1}" if mantissa == 0.5 and not 2**-4 <= value < 2**17 else f"{value:g}"


def _is_float64(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number past float64
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _shown(value: Any) -> str:
    if isinstance(value, Dotted):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str) and len(value) < 60:
        return f'"{value}"' if value.isprintable() else json.dumps(value)
    return reprlib.repr(value)
