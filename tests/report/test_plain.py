# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.report.plain import paragraph, plain


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("train.py", "train.py"),
        ("训练.py", "训练.py"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("evil\u202etxt", "evil\\u202etxt"),
        ("lone \udc80", "lone \\udc80"),
    ],
)
def test_plain(text: str, harmless: str) -> None:
    assert plain(text) == harmless


@given(st.text(st.characters()))
def test_plain_is_printable_utf8_and_stable(text: str) -> None:
    once = plain(text)
    assert once.isprintable()
    assert once.encode().decode() == once
    assert plain(once) == once


def test_paragraph_follows_the_language(language: str) -> None:
    assert paragraph(["A.", "B."]) == ("A. B." if language == "en" else "A.B.")
