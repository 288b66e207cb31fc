# SPDX-License-Identifier: Apache-2.0
"""On which line a key stands, and where a text stops being TOML."""

from __future__ import annotations

import pytest

from floatwise.plan.problems import Loc
from floatwise.plan.toml_source import TomlSyntaxError, line_of, lines_of_keys, parse_toml

_TEXT = '''\
# comment with [table] and key = 1
top = 1
dotted.inner = 2
"quoted key" = """
[not_a_table]
key = 1
"""

[policy]   # comment
compute_dtype = "float16"

[[modules]]
module = "a"
policy = { compute_dtype = "float32", deep = [{ x = 1 }] }

[[modules]]
module = "b"
[modules.policy]
compute_dtype = "float32"

[evidence."a.b".c]
values = [
    1,
    2, # ]
]
last = \'\'\'
x = 1\'\'\'
after = 1
'''


@pytest.mark.parametrize(
    ("loc", "line"),
    [
        (("top",), 2),
        (("dotted", "inner"), 3),
        (("quoted key",), 4),
        (("policy",), 9),
        (("policy", "compute_dtype"), 10),
        (("policy", "missing"), 9),
        (("modules",), 12),
        (("modules", 0), 12),
        (("modules", 0, "module"), 13),
        (("modules", 0, "policy", "compute_dtype"), 14),
        (("modules", 0, "policy", "deep", 0, "x"), 14),
        (("modules", 1), 16),
        (("modules", 1, "module"), 17),
        (("modules", 1, "policy"), 18),
        (("modules", 1, "policy", "compute_dtype"), 19),
        (("evidence",), 21),
        (("evidence", "a.b", "c", "values", 1), 22),
        (("evidence", "a.b", "c", "last"), 26),
        (("evidence", "a.b", "c", "after"), 28),
        (("missing",), 1),
        ((), 1),
    ],
)
def test_line(loc: Loc, line: int) -> None:
    assert line_of(loc, lines_of_keys(_TEXT)) == line


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_has_a_line(newline: str) -> None:
    text = _TEXT.replace("\n", newline)
    lines = lines_of_keys(text)
    assert set(parse_toml(text)) == {loc[0] for loc in lines if len(loc) == 1}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a = 1\nb = \n", 2, "Invalid value"),
        ("a = 1\na = 2\n", 2, "overwrite"),
        ("[a]\n[b]\n[a]\n", 3, "twice"),
        ('a = 1\nb = "x', 2, "ends too early"),
        ("a = 1\nb = [1,\n2\n\n\n", 3, "ends too early"),
        ("fp16: true\n", 1, "Expected"),
        ("a = " + "[" * 100_000, 1, "nested"),
        ("a = " + "1" * 5000, 1, ""),
        ("a = 2020-13-45", 1, ""),
    ],
)
def test_syntax_error_has_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(TomlSyntaxError) as caught:
        parse_toml(text)
    assert caught.value.line == line
    assert what in caught.value.what
    assert "at line" not in caught.value.what
