# SPDX-License-Identifier: Apache-2.0
"""Each form is read with the line of every value, and what is not of the form is told with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from floatwise.errors import BadFileError
from floatwise.exporters.forms import FORMS, form_of_file
from floatwise.exporters.forms.json_form import parse_json
from floatwise.exporters.forms.python_form import parse_python
from floatwise.exporters.forms.yaml_form import dump_yaml, parse_yaml
from floatwise.exporters.read import load_settings, settings_of_text
from floatwise.exporters.settings import UNKNOWN, Call, Dotted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)

ASCII = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1)


def _tables(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=3) | st.dictionaries(ASCII, inner, max_size=3)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from((None, 0, 2)))
def test_json_is_read_as_the_standard_reader_reads_it(values: dict[str, object], indent: int | None) -> None:
    text = json.dumps(values, indent=indent)
    parsed = parse_json(text)
    assert parsed.values == values
    for loc, line in parsed.lines.items():
        assert json.dumps(loc[-1]) in text.split("\n")[line - 1] or isinstance(loc[-1], int)


# PyYAML itself folds line separators in keys (U+0085, U+2028), which no configuration has.
@given(st.dictionaries(ASCII, st.recursive(ASCII | st.booleans() | st.floats(0, 1e9), _tables), max_size=4))
def test_yaml_that_was_written_is_read_back(values: dict[str, object]) -> None:
    parsed = parse_yaml(dump_yaml(values) if values else "{}")
    assert parsed.values == values


LINES = [
    ("json", '{\n "a": 1,\n "b": {"c":\n  [true,\n {"d": "x"}]}\n}', {("a",): 2, ("b", "c"): 4, ("b", "c", 1, "d"): 5}),
    ("yaml", "a: 1\nb:\n  c:\n    - x\n    - d: 2\n", {("a",): 1, ("b", "c"): 3, ("b", "c", 1, "d"): 5}),
    ("flags", "--bf16 \\\n  --loss-scale 8 # none\n--x=1", {("bf16",): 1, ("loss_scale",): 2, ("x",): 3}),
    ("python", "A = 1\nf(\n  b=2,\n)\ng.h(c=f(b=3))", {("A",): 1, ("f",): 2, ("f", "b"): 3, ("h",): 5}),
]


@pytest.mark.parametrize(("form", "text", "lines"), LINES, ids=[row[0] for row in LINES])
def test_every_value_has_its_line(form: str, text: str, lines: dict[tuple[str | int, ...], int]) -> None:
    parsed = FORMS[form].parse(text)
    assert {loc: parsed.lines[loc] for loc in lines} == lines


FAULTS = [
    ("json", '{\n"a": 1,\n}', "x:2: not JSON: got a comma before a closing bracket; delete it"),
    ("json", '{\n"a": 1, // c\n"b": 2}', "x:2: not JSON: it has no comments; delete this one"),
    ("json", '{"a": NaN}', "x:1: not JSON: got NaN, which JSON has no number for"),
    ("json", '{"a": 1,\n "a": 2}', "x:2: got the key 'a' a second time in one table"),
    ("json", "[1]", "x:1: got a list, expected a table in braces"),
    ("json", "[" * 100000, "x:1: not a configuration: its tables are nested too deep"),
    ("yaml", "a: 1\nb: [", "x:2: not YAML: "),
    ("yaml", "a: 1\na: 2", "x:2: got the key 'a' a second time in one table"),
    ("yaml", "a: !!python/object:os.system x", "x:1: not YAML: could not determine a constructor"),
    ("yaml", "just text", "x:1: got no table; expected lines of the form"),
    ("python", "a = 1\nf(\n", "x:2: not Python: '(' was never closed"),
    ("flags", "--a 1\n--b 'x", "x:2: not flags: No closing quotation"),
]


@pytest.mark.parametrize(("form", "text", "message"), FAULTS, ids=lambda value: repr(value)[:30])
def test_what_is_not_of_the_form_is_told_with_its_line(form: str, text: str, message: str) -> None:
    with pytest.raises(BadFileError) as error:
        settings_of_text(text, form, "x")
    assert str(error.value).startswith(message)


def test_python_source_is_understood_as_far_as_it_is_literal() -> None:
    source = """
import torch
SCALE = 2.0**16
ARGS = dict(fp16=True)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=None, n=[1, "a"], t={"k": -1})
trainer = pl.Trainer(precision=args.precision, plugins=[MixedPrecision("16-mixed", scaler=GradScaler(SCALE))], x=f())
"""
    parsed = parse_python(source)
    assert parsed.values["SCALE"] == 65536.0
    assert [call.name for call in parsed.calls] == [
        "dict",
        "MixedPrecisionPolicy",
        "Trainer",
        "MixedPrecision",
        "GradScaler",
        "f",
    ]
    policy, trainer = parsed.calls[1], parsed.calls[2]
    assert policy.kwargs == {"param_dtype": "torch.bfloat16", "reduce_dtype": None, "n": [1, "a"], "t": {"k": -1}}
    assert isinstance(policy.kwargs["param_dtype"], Dotted)
    assert policy.assigned == "policy"
    assert trainer.dotted == "pl.Trainer"
    assert trainer.kwargs["precision"] == Dotted("args.precision")
    (plugin,) = trainer.kwargs["plugins"]
    assert isinstance(plugin, Call)
    assert plugin.args == ("16-mixed",)
    assert plugin.kwargs["scaler"].args == (65536.0,)


def test_a_name_that_is_assigned_twice_is_unknown() -> None:
    assert parse_python("A = 1\nA = 2\nf(x=A)").calls[0].kwargs["x"] is UNKNOWN


def test_yaml_reads_an_unquoted_no_as_its_users_do() -> None:
    assert (
        parse_yaml("mixed_precision: no").values == yaml.safe_load("mixed_precision: no") == {"mixed_precision": False}
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.json", "json"), ("A.YML", "yaml"), ("t.py", "python"), ("run.sh", "flags"), ("a.args", "flags"), ("a", None)],
)
def test_the_form_of_a_file_goes_by_its_name(name: str, form: str | None) -> None:
    found = form_of_file(name)
    assert (found.name if found else None) == form


UNREADABLE = [
    (b"", "the file is empty"),
    (b"\x00\x01", "this is a binary file, not a configuration"),
    (b'{"a": "\xff"}', "got the byte ff, which is not UTF-8"),
]


@pytest.mark.parametrize(("data", "message"), UNREADABLE, ids=["empty", "binary", "not UTF-8"])
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(data)
    with pytest.raises(BadFileError, match=message) as error:
        load_settings(path)
    assert str(error.value).startswith(f"{path}:1: ")


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="there is no such file"):
        load_settings(tmp_path / "no.json")
    with pytest.raises(BadFileError, match="this is a directory"):
        load_settings(tmp_path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert load_settings(path).values == {"a": 1}
