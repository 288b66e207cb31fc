# SPDX-License-Identifier: Apache-2.0
"""What parsing a configuration gives, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatwise.exporters.settings import Call
from floatwise.plan.problems import Loc

__all__ = ["FormError", "Parsed"]


@dataclass(frozen=True)
class Parsed:
    """Values, lines and calls of a text; the attributes are those of `Settings`."""

    values: Mapping[str, Any]
    lines: Mapping[Loc, int] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()


class FormError(ValueError):
    """Text that is not of its form.

    Attributes:
      line: Line of the fault, from 1.
      what: What is wrong there.
    """

    def __init__(self, line: int, what: str) -> None:
        self.line, self.what = line, what
        super().__init__(line, what)
