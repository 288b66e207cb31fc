# SPDX-License-Identifier: Apache-2.0
"""Versions of other systems: compared by their numbers, and looked up among what is installed."""

from __future__ import annotations

import importlib.metadata
import re
import reprlib
from dataclasses import dataclass
from functools import total_ordering

from floatwise.errors import BadInputError

__all__ = ["Version", "installed_version"]

_NUMBERS = re.compile(r"v?(\d{1,9}(?:\.\d{1,9})*)(?!\d)([\w.+!-]*)", re.ASCII)


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version by its leading numbers; what follows them (`rc1`, `+cpu`) is shown and not compared.

    >>> Version.of("0.19.8") < Version.of("0.20")
    True
    """

    numbers: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, text: str) -> Version:
        """Reads a version.

        Raises:
          BadInputError: The text does not begin with numbers, or is no version after them.
        """
        found = _NUMBERS.fullmatch(text.strip())
        if not found:
            raise BadInputError(f"got the version {reprlib.repr(text)}; write its numbers, as in 0.19.8")
        return cls(tuple(int(number) for number in found[1].split(".")), text.strip())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.text

    def within(self, since: str, until: str) -> bool:
        """Returns whether the version is `since` or newer and older than `until`; empty text is no limit."""
        return not (since and self < Version.of(since)) and not (until and self >= Version.of(until))

    def _key(self) -> tuple[int, ...]:
        numbers = self.numbers
        while len(numbers) > 1 and numbers[-1] == 0:
            numbers = numbers[:-1]
        return numbers


def installed_version(distribution: str) -> Version | None:
    """Returns the version of a package in this environment, without importing it; None when it is not there."""
    try:
        return Version.of(importlib.metadata.version(distribution))
    except (importlib.metadata.PackageNotFoundError, BadInputError):
        return None
