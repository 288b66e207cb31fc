# SPDX-License-Identifier: Apache-2.0
"""Strings for people: foreign ones made harmless, sentences joined.

File names and module paths may hold anything, terminal escapes included.
"""

from __future__ import annotations

from collections.abc import Iterable

from floatwise.language import Text

__all__ = ["paragraph", "plain"]

_SPACE = Text(" ", "")


def plain(text: object) -> str:
    """Returns the string with every character that is not printable, line breaks too, written as its escape.

    That keeps a file name from moving the cursor, reversing the text, or being impossible to encode in UTF-8.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def paragraph(sentences: Iterable[str]) -> str:
    """Returns whole sentences as one paragraph; Chinese puts no space between them."""
    return str(_SPACE).join(sentences)
