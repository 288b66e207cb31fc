# SPDX-License-Identifier: Apache-2.0
"""Another system's configuration as read: values, and the line each stands on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from floatwise.errors import BadFileError
from floatwise.plan.problems import Loc, Problem, dotted

__all__ = ["UNKNOWN", "Call", "Dotted", "Settings", "SettingsProblems", "Unknown", "printable"]


class Dotted(str):
    """A name in Python source that is no literal, such as `torch.bfloat16`."""

    __slots__ = ()

    @property
    def last(self) -> str:
        """The part after the last dot."""
        return self.rpartition(".")[2]


class Unknown:
    """A value that only running the source would tell."""

    def __repr__(self) -> str:
        return "(known only when run)"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Call:
    """A call in Python source.

    Attributes:
      name: What is called, its last name only: `GradScaler` for `torch.amp.GradScaler(...)`.
      args: Positional arguments: literals, `Dotted`, `Call` for nested calls, or `UNKNOWN`.
      kwargs: Arguments by name; likewise.
      line: Line of the call, from 1.
      dotted: The whole name as written.
      assigned: The name that the call's result is assigned to; empty when it is not.
      open: True when it has further arguments that only running would tell: `*args`, or `**kwargs` of no literal.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int
    dotted: str = ""
    assigned: str = ""
    open: bool = False


@dataclass(frozen=True)
class Settings:
    """A configuration.

    Attributes:
      values: Nested tables, of JSON, YAML or flags; of Python source: its module-level constants by name.
      lines: The line, from 1, of each value by its keys and list positions; of an argument of a call by
        `("Name", "argument")`, and of the call by `("Name",)`: the first of that name; of further ones by
        `("Name", 1)` and so on.
      source: What messages call the file.
      form: How it was written: `json`, `yaml`, `python` or `flags`.
      calls: The calls of Python source, outer before inner, in the order of the source.
      beneath: The name of the system that reads this file as part of its own (a DeepSpeed file that Trainer or
        Accelerate is given); empty for a file of its own.
      files: Where the files it names are looked for; the folder of the file.
    """

    values: Mapping[str, Any]
    lines: Mapping[Loc, int] = field(default_factory=dict)
    source: str = "<string>"
    form: str = "json"
    calls: tuple[Call, ...] = ()
    beneath: str = ""
    files: str = ""

    def get(self, *keys: str | int, default: Any = None) -> Any:
        """Returns the value at `keys`; `default` where there is none."""
        value: Any = self.values
        for key in keys:
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
                value = value[key]
            else:
                return default
        return value

    def has(self, *keys: str | int) -> bool:
        """Returns whether there is a value at `keys`."""
        nothing = object()
        return self.get(*keys, default=nothing) is not nothing

    def call(self, name: str) -> Call | None:
        """Returns the first call of `name` (its last name); None when there is none."""
        return next((call for call in self.calls if call.name == name), None)

    def leaves(self) -> Iterator[tuple[Loc, Any]]:
        """Yields every value that is no table, and every argument by name of every call, with its place."""
        yield from _leaves((), self.values)
        for call in self.calls:
            for name, value in call.kwargs.items():
                yield (call.name, name), value

    def line(self, loc: Loc) -> int:
        """Returns the line of the value at `loc`, or of the innermost table around it that is known, or 1."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.lines:
                return self.lines[loc[:length]]
        return 1

    def bad_file(self, problems: Iterable[Problem]) -> BadFileError:
        """Returns the error that lists `problems`, each with the file and its line."""
        rows = sorted((self.line(p.loc), f"{dotted(p.loc)}: {p.text}" if p.loc else p.text) for p in problems)
        return BadFileError(
            "\n".join(f"{printable(self.source)}:{line}: {printable(text)}" for line, text in dict.fromkeys(rows))
        )


class SettingsProblems(Exception):
    """Faults found while settings were read, as data; the reader of the file turns them into a `BadFileError`."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(p.text for p in self.problems))


def printable(text: str) -> str:
    """Returns the text with what is no printable character as its escape; line breaks stay.

    That keeps a value of a file from moving the cursor, colouring the terminal or reversing the text.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def _leaves(loc: Loc, value: Any) -> Iterator[tuple[Loc, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves((*loc, key), inner)
    elif loc:
        yield loc, value
