# SPDX-License-Identifier: Apache-2.0
"""Text that a UTF-8 file can hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

__all__ = ["PlanText", "unencodable"]


def unencodable(text: str) -> bool:
    """Returns whether `text` has lone surrogates, as file names that are not UTF-8 have in Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _encodable(text: str) -> str:
    if unencodable(text):
        raise ValueError(f"got {text!r}, which UTF-8 cannot write; replace the lone surrogates")
    return text


PlanText = Annotated[str, AfterValidator(_encodable)]
