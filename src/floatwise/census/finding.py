# SPDX-License-Identifier: Apache-2.0
"""Something about a training step that needs action."""

from __future__ import annotations

from dataclasses import dataclass

from floatwise.language import Text

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """Something that needs action.

    Attributes:
      code: A short name of the kind.
      paths: The leaves it concerns; empty when it concerns the whole step.
      text: What it is, why it matters and what to do, in both languages.
    """

    code: str
    paths: tuple[str, ...]
    text: Text

    def __str__(self) -> str:
        return str(self.text)
