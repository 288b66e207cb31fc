# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.report.figures.text import label, power, raised, shortened, width_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>a</b>", "&lt;b&gt;a&lt;/b&gt;"),
        ("&lt;", "&amp;lt;"),
        ("a\x1b[2J\n\u202e", "a\\x1b[2J\\n\\u202e"),
        ("%{x}", "%{x}"),
    ],
)
def test_foreign_text_is_shown_as_it_is(text: str, expected: str) -> None:
    assert label(text) == expected


def test_powers_are_raised() -> None:
    assert power(-24) == "2<sup>−24</sup>"
    assert raised("float16 × 2^13") == "float16 × 2<sup>13</sup>"


@given(st.text(max_size=60), st.integers(3, 40))
def test_shortened_text_fits_and_keeps_both_ends(text: str, most: int) -> None:
    short = shortened(text, most)
    shown = short.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert width_of(shown) <= most
    assert "<" not in short


def test_the_end_of_a_path_says_most() -> None:
    assert shortened("transformer.h.11.mlp.c_proj", 17) == "transf…mlp.c_proj"
    assert shortened("损失缩放窗口", 7) == "损…窗口"
    assert shortened("lm_head", 17) == "lm_head"
