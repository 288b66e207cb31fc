# SPDX-License-Identifier: Apache-2.0
"""Module globs: what they cover, what they refuse, and what holds for all of them."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.errors import BadInputError
from floatwise.plan import ModulePolicy, Policy, escape_module, match_module, policy_for, recipe

_PLAIN = "".join(c for c in string.printable if c not in ".*?[")
_NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=8)
_PATHS = st.lists(_NAMES, max_size=5).map(".".join)
_PLAIN_PATHS = st.lists(st.text(_PLAIN, min_size=1, max_size=8), min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("encoder", "encoder", True),
        ("encoder", "encoder.norm", False),
        ("encoder", "my_encoder", False),
        ("encoder.*", "encoder.norm", True),
        ("encoder.*", "encoder", False),
        ("encoder.*", "encoder.layers.0", False),
        ("encoder.**", "encoder", True),
        ("encoder.**", "encoder.layers.0.norm", True),
        ("encoder.**", "encoders", False),
        ("**.norm", "norm", True),
        ("**.norm", "a.b.norm", True),
        ("**.norm", "a.b.layernorm", False),
        ("a.**.z", "a.z", True),
        ("a.**.z", "a.b.c.z", True),
        ("a.**.**.z", "a.z", True),
        ("**", "", True),
        ("**", "a.b", True),
        ("*", "", False),
        ("*", "(root)", False),
        ("", "", True),
        ("(root)", "", True),
        ("", "(root)", True),
        ("(root)", "a", False),
        ("layers.?", "layers.7", True),
        ("layers.?", "layers.11", False),
        ("layers.[0-3]", "layers.3", True),
        ("layers.[0-3]", "layers.4", False),
        ("layers.[!0-3]", "layers.4", True),
        ("layers.[!0-3]", "layers.3", False),
        ("layers.1[01]", "layers.11", True),
        ("norm[ab-]", "norm-", True),
        ("norm[]a]", "norm]", True),
        ("norm[--/]", "norm-", True),
        ("a[+-9]b", "a.b", False),
        ("a[!x]b", "a.b", False),
        ("a?b", "a.b", False),
        ("a*b", "a.b", False),
        ("a*b", "ab", True),
        ("Norm", "norm", False),
        ("conv(1)+|$^", "conv(1)+|$^", True),
        ("x[[]0]", "x[0]", True),
        ("层*", "层归一化", True),
        ("a\\d", "a\\d", True),
        ("a\\d", "a1", False),
        ("a*", "a\n1", True),
    ],
)
def test_pattern_covers(pattern: str, path: str, covered: bool) -> None:
    assert match_module(pattern, path) is covered


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a..b", "no name between two dots"),
        (".a", "before the first"),
        ("a.", "after the last"),
        (".", "no name"),
        ("a**", "stands alone"),
        ("***", "stands alone"),
        ("a[0", "no `]`"),
        ("a[0.1]", "no `]`"),
        ("a[]", "is empty"),
        ("a[!]", "is empty"),
        ("a[9-0]", "runs backwards"),
        ("layers.[0-11]", "one character"),
    ],
)
def test_malformed_pattern_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(BadInputError, match="got the module glob") as caught:
        match_module(pattern, "a")
    assert why in str(caught.value)
    assert repr(pattern) in str(caught.value)


@given(_PLAIN_PATHS)
def test_literal_path_matches_itself(path: str) -> None:
    assert match_module(path, path)


@given(_PATHS, _PATHS)
def test_escaped_path_matches_itself_alone(path: str, other: str) -> None:
    assert match_module(escape_module(path), path)
    assert match_module(escape_module(path), other) is (path == other)


@given(_PATHS)
def test_double_star_matches_everything(path: str) -> None:
    assert match_module("**", path)


@given(_PATHS, _PATHS)
def test_star_never_crosses_a_dot(path: str, rest: str) -> None:
    depth = len(path.split(".")) if path else 0
    pattern = ".".join(["*"] * depth)
    assert match_module(pattern, path)
    if path and rest:
        assert not match_module(pattern, f"{path}.{rest}")
        assert match_module(f"{escape_module(path)}.**", f"{path}.{rest}")


def test_many_stars_stay_quick() -> None:
    start = time.perf_counter()
    assert not match_module("**.a." * 6 + "z", ".".join(["a"] * 30))
    assert not match_module("a*a*a*a*z", "a" * 60)
    assert time.perf_counter() - start < 10


def test_later_entries_win() -> None:
    low, high = Policy(compute_dtype="bfloat16"), Policy(compute_dtype="float32")
    plan = recipe(
        "bf16-mixed",
        modules=(
            ModulePolicy(module="blocks.**", policy=high),
            ModulePolicy(module="blocks.0.**", policy=low, reason="measured"),
        ),
    )
    assert policy_for(plan, "blocks.1.norm") == high
    assert policy_for(plan, "blocks.0.norm") == low
    assert policy_for(plan, "head") == plan.policy
    assert policy_for(plan, "") == plan.policy
