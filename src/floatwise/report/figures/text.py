# SPDX-License-Identifier: Apache-2.0
"""Strings inside figures: Plotly reads tags and entities in them, and much of the text comes from strangers."""

from __future__ import annotations

import re
import unicodedata

from floatwise.report.plain import plain

__all__ = ["label", "power", "raised", "shortened", "width_of"]


def label(text: object) -> str:
    """Returns a text that Plotly shows as it is: no tags, no entities, no control characters."""
    return plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def power(exponent: float) -> str:
    """Returns 2 with a raised exponent, as Plotly reads it."""
    return f"2<sup>{exponent:g}</sup>".replace("-", "−")


def raised(text: str) -> str:
    """Returns a label of ours in which the exponents of powers of two are raised."""
    return re.sub(r"2\^(-?[0-9]+)", lambda found: power(int(found[1])), text)


def width_of(text: str) -> int:
    """Returns how many columns of a fixed-width font a text takes; East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def shortened(text: object, most: int) -> str:
    """Returns a label of at most so many columns; the middle is left out, for the end of a path says most.

    Args:
      text: What is to be shown; it is made harmless.
      most: Columns, at least 3.
    """
    whole = plain(text)
    if width_of(whole) <= most:
        return label(whole)
    tail = _within(whole[::-1], (most - 1) * 2 // 3)[::-1]
    head = _within(whole, most - 1 - width_of(tail))
    return label(f"{head}…{tail}")


def _within(text: str, most: int) -> str:
    while width_of(text) > most:
        text = text[:-1]
    return text
