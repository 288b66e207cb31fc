# SPDX-License-Identifier: Apache-2.0
"""User-facing text in English and Chinese, both kept side by side where the text is used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, cast

__all__ = ["Language", "Text", "current_language"]

Language = Literal["en", "zh"]


def current_language() -> Language:
    """Returns `FLOATWISE_LANG` when it is `en` or `zh` (or begins so), else the locale's language, else `en`."""
    for variable in ("FLOATWISE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable, "").casefold()
        if value[:2] in ("en", "zh"):
            return cast(Language, value[:2])
    return "en"


@dataclass(frozen=True)
class Text:
    """One sentence in both languages; placeholders in braces are filled by `format`."""

    en: str
    zh: str

    def __str__(self) -> str:
        return getattr(self, current_language())  # type: ignore[no-any-return]

    def format(self, **values: object) -> str:
        """Returns the sentence in the current language with its placeholders filled."""
        return str(self).format(**values)
