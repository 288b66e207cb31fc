# SPDX-License-Identifier: Apache-2.0
"""Globs as regular expressions cover what `match_module` covers, with dots and with slashes."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from floatwise.errors import BadInputError
from floatwise.exporters.glob_source import glob_regex, literal_glob, regex_text
from floatwise.plan.match import match_module

SEGMENTS = ("a", "ab", "a1", "*", "a*", "?", "[ab]", "[!a]", "[a-c]1", "**", "[]x]", "[[]a", "a-b", "[!-/]", "[a^]")
NAMES = ("a", "b", "ab", "a1", "c1", "]", "[a", "a-b", "0", "x", "^", "-")


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4),
    st.lists(st.sampled_from(NAMES), max_size=5),
    st.sampled_from("./"),
)
def test_the_expression_covers_what_the_glob_covers(segments: list[str], names: list[str], separator: str) -> None:
    glob = ".".join(segments)
    try:
        covered = match_module(glob, ".".join(names))
    except BadInputError:
        assume(False)
    written = ast.literal_eval(regex_text(glob_regex(glob, separator)))
    assert (re.fullmatch(written, separator.join(names), re.DOTALL) is not None) == covered


@pytest.mark.parametrize(
    ("glob", "regex"),
    [
        ("head", "head"),
        ("(root)", ""),
        ("blocks.*.norm[12]", "blocks/[^/]+/norm[12]"),
        ("encoder.**", "encoder(?:/[^/]+)*"),
        ("**.norm", "(?:[^/]+/)*norm"),
    ],
)
def test_simple_globs_stay_readable(glob: str, regex: str) -> None:
    assert glob_regex(glob, "/") == regex


def test_a_malformed_glob_is_refused() -> None:
    with pytest.raises(BadInputError, match="runs backwards"):
        glob_regex("a[z-a]")


@pytest.mark.parametrize(("glob", "literal"), [("a.b", True), ("a.*", False), ("a?", False), ("a[12]", False)])
def test_a_literal_glob_has_no_wildcard(glob: str, literal: bool) -> None:
    assert literal_glob(glob) is literal


@pytest.mark.parametrize("regex", [r"a\.b", 'a"b', "a\nb", "a\\"])
def test_source_of_an_expression_reads_back(regex: str) -> None:
    assert ast.literal_eval(regex_text(regex)) == regex
