# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.report.folding import fold_paths


@pytest.mark.parametrize(
    ("paths", "patterns"),
    [
        ([], []),
        (["head"], ["head"]),
        (["h.0.ln", "h.1.ln", "h.2.ln"], ["h.{0..2}.ln"]),
        (["h.0.ln", "h.7.ln"], ["h.{0,7}.ln"]),
        (["h.3", "h.4", "h.5", "h.9"], ["h.{3..5,9}"]),
        (["layer1.0.bn1", "layer1.0.bn2", "layer2.0.bn1", "layer2.0.bn2"], ["layer{1,2}.0.bn{1,2}"]),
        (["h.0.a", "x", "h.1.a"], ["h.{0,1}.a", "x"]),
        (["h.0.a", "h.1.b"], ["h.0.a", "h.1.b"]),
        (["h.00", "h.01"], ["h.00", "h.01"]),
        ([""], [""]),
    ],
)
def test_patterns(paths: list[str], patterns: list[str]) -> None:
    assert [entry.pattern for entry in fold_paths(paths)] == patterns


def expanded(pattern: str) -> set[str]:
    """Returns what a shell makes of the braces."""
    parts = [_numbers(part) if index % 2 else [part] for index, part in enumerate(re.split(r"\{([^}]*)\}", pattern))]
    return {"".join(choice) for choice in itertools.product(*parts)}


def _numbers(inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, _, last = part.partition("..")
        found += map(str, range(int(first), int(last or first) + 1))
    return found


_NAMES = st.lists(st.one_of(st.sampled_from(["h", "ln1", "0", "00", "x9y"]), st.integers(0, 12).map(str)), max_size=4)


@given(st.lists(_NAMES.map(".".join), max_size=30))
def test_patterns_stand_for_exactly_the_paths(paths: list[str]) -> None:
    folded = fold_paths(paths)
    assert {path for entry in folded for path in expanded(entry.pattern)} == set(paths)
    assert all(expanded(entry.pattern) == set(entry.paths) for entry in folded)
    assert sorted(path for entry in folded for path in entry.paths) == sorted(set(paths))
