# SPDX-License-Identifier: Apache-2.0
"""What parsing a configuration gives, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatwise.exporters.settings import Call
from floatwise.plan.problems import Loc

__all__ = ["DEEPEST", "FormError", "Parsed"]

DEEPEST = 100
"""How deep tables and lists may be nested. Convention: configurations have under ten levels."""


@dataclass(frozen=True)
class Parsed:
    """A text understood.

    Attributes:
      values: As in `Settings`; keys are texts.
      lines: As in `Settings`.
      calls: As in `Settings`.
      content: The table with the keys as they are, numbers and dates in YAML; None where it is `values`.
    """

    values: Mapping[str, Any]
    lines: Mapping[Loc, int] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    content: Mapping[Any, Any] | None = None


class FormError(ValueError):
    """Text that is not of its form.

    Attributes:
      line: Line of the fault, from 1.
      what: What is wrong there.
    """

    def __init__(self, line: int, what: str) -> None:
        self.line, self.what = line, what
        super().__init__(line, what)
