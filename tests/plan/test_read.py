# SPDX-License-Identifier: Apache-2.0
"""Reading plan files: whatever is wrong with one, every fault has its line and a way out."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatwise.errors import BadFileError
from floatwise.plan import RECIPES, dumps_plan, load_plan, loads_plan, recipe

_BY_HAND = """\
schema_version = 1
recipe = "bf16-mixed"

[policy]
compute_dtype = "bfloat16"
"""


def _messages(text: str) -> list[str]:
    """Returns the faults of a text, each with its explanation folded into its line."""
    with pytest.raises(BadFileError) as caught:
        loads_plan(text, "precision.toml")
    return str(caught.value).replace("\n    ", " ").splitlines()


def test_a_short_plan_by_hand_has_the_defaults() -> None:
    assert loads_plan(_BY_HAND) == recipe("bf16-mixed")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_read_from_its_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "precision.toml"
    for text in (dumps_plan(recipe(name)), "\ufeff" + dumps_plan(recipe(name)).replace("\n", "\r\n")):
        path.write_bytes(text.encode())
        assert load_plan(path) == recipe(name)


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("recipe", "recpie", 2, "recpie: unknown key; did you mean 'recipe'?"),
        ('"bf16-mixed"', '"bf16-mixd"', 2, "recipe: unknown recipe 'bf16-mixd'; did you mean 'bf16-mixed'"),
        ('"bfloat16"', '"bf16"', 5, "policy.compute_dtype: got 'bf16', expected"),
        (
            "compute_dtype",
            "compute_type",
            5,
            "policy.compute_type: unknown key; did you mean 'compute_dtype' or",
        ),
        ("[policy]", "[plicy]", 4, "plicy: unknown key; did you mean 'policy'?"),
        ("[policy]", "[policy", 4, "not TOML: "),
        ("schema_version = 1", "", 1, "schema_version: missing; write schema_version = 1"),
        ("schema_version = 1", 'schema_version = "1"', 1, "schema_version: got '1', expected a whole number"),
        ("schema_version = 1", "schema_version = 0", 1, "schema_version: got 0, expected 1"),
        ("[policy]", "[loss_scale]\n[policy]", 4, "loss_scale: got a loss scale while compute_dtype"),
        ("[policy]", "[policy]\ncompute_dtype = 1", 6, "not TOML: Cannot overwrite a value"),
        ("recipe =", "recipe = 2020-01-01 #", 2, "recipe: got datetime.date(2020, 1, 1), expected text"),
    ],
)
def test_a_fault_has_its_line(before: str, after: str, line: int, message: str) -> None:
    text = _BY_HAND.replace(before, after)
    assert any(m.startswith(f"precision.toml:{line}: {message}") for m in _messages(text)), _messages(text)


def test_all_faults_come_at_once_in_the_order_of_lines() -> None:
    text = """\
schema_version = 1
recipe = "bf16-mixed"
scaling = "tensorwise"
extra = 1

[policy]
compute_dtype = "bfloat16"

[[modules]]
module = "a"
policy = { compute_dtype = "float32" }

[[modules]]
module = "layers.[0-11]"
[modules.policy]
compute_dtype = "float16"

[loss_scale]
initial_scale = "big"
backoff_factor = 2.0

[evidence]
amax = nan
"""
    starts = [message.split(": ")[:2] for message in _messages(text)]
    assert starts == [
        ["precision.toml:3", "scaling"],
        ["precision.toml:4", "extra"],
        ["precision.toml:14", "modules[1].module"],
        ["precision.toml:19", "loss_scale.initial_scale"],
        ["precision.toml:20", "loss_scale.backoff_factor"],
        ["precision.toml:23", "evidence.amax"],
    ]


def test_the_lines_a_message_tells_to_add_are_accepted() -> None:
    text = _BY_HAND.replace("bf16-mixed", "fp16-mixed").replace("bfloat16", "float16")
    with pytest.raises(BadFileError) as caught:
        loads_plan(text)
    _, _, lines = str(caught.value).partition("add these lines:\n")
    assert loads_plan(f"{text}\n{lines}") == recipe("fp16-mixed")


def test_a_version_from_the_future_is_all_that_is_said() -> None:
    (message,) = _messages("# new\nschema_version = 2\n[policies]\nunheard_of = 1\nrecipe = 1\n" + "[policy]\n")
    assert message.startswith("precision.toml:2: schema_version: got 2, but this Floatwise reads up to 1")
    assert "pip install --upgrade floatwise" in message


def test_a_file_cut_off_anywhere_is_refused() -> None:
    text = dumps_plan(recipe("fp16-mixed", evidence={"amax": 12345.678, "values": [1, 2], "inner": {"ü": "x"}}))
    for length in range(len(text) - 1):
        with pytest.raises(BadFileError, match=r"^precision\.toml:\d+: "):
            loads_plan(text[:length], "precision.toml")


_WRITTEN = dumps_plan(
    recipe(
        "fp16-mixed",
        modules=[{"module": "a.*", "policy": {"compute_dtype": "float32"}, "reason": "why"}],
        evidence={"values": list(range(40)), "rows": [{"a": 1}] * 20, "inner": {"ü.": {"x": "y"}}},
    )
)
_PIECES = st.text(st.sampled_from(list("\n\r\t \"'[]{}=.,#-_a1é\0")), max_size=6) | st.sampled_from(
    _WRITTEN.splitlines(keepends=True)
)


@given(st.lists(st.tuples(st.integers(0, len(_WRITTEN)), st.integers(0, 30), _PIECES), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_spoilt_file_is_a_plan_or_a_bad_file(edits: list[tuple[int, int, str]]) -> None:
    text = _WRITTEN
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    message = ""
    try:
        plan = loads_plan(text, "precision.toml")
    except BadFileError as error:
        message = str(error)
    else:
        assert loads_plan(dumps_plan(plan)) == plan
    lines = [int(m) for m in re.findall(r"^precision\.toml:(\d+): ", message, re.MULTILINE)]
    assert bool(lines) is bool(message)
    assert lines == sorted(lines)
    assert not lines or lines[-1] <= text.count("\n") + 1
    # Whatever begins no message continues one.
    assert all(re.match(r"precision\.toml:\d+: | {4}|$", line) for line in message.split("\n"))


def test_a_file_cut_off_between_lines_is_called_so() -> None:
    text = dumps_plan(recipe("fp16-mixed"))
    (message,) = _messages(text[: text.index("[reductions]")])
    line = text[: text.index("[reductions]")].count("\n")
    assert message.startswith(f"precision.toml:{line}: the file is cut off: its last line")
    # Within a line, too: what else is wrong then follows from the cut.
    (message,) = _messages(text[: text.index('"float32"') + 4])
    assert "cut off" in message


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", 1, "the file is empty"),
        (b" \n\n", 1, "the file is empty"),
        (b"# nothing\n", 1, "none of its keys is a plan's"),
        (b'{"fp16": {"enabled": true}}', 1, "this is JSON"),
        (b'\n  {"zero_optimization": {}}', 1, "this is JSON"),
        (b"[project]\nname = 'x'\n", 1, "none of its keys is a plan's"),
        (b"mixed_precision: fp16\n", 1, "not TOML"),
        (b"import torch\n", 1, "not TOML"),
        (b"schema_version = 1\nrecipe = '\xff\xfe'\n", 2, "got the byte ff, which is not UTF-8"),
        ("schema_version = 1\n".encode("utf-16"), 1, "UTF-16 text: save it as UTF-8"),
        ("schema_version = 1\n".encode("utf-16-le"), 1, "this is a binary file"),
        (b"\x7fELF\x02\x01\n\x00", 2, "this is a binary file"),
        (b"\x1f\x8b\x08", 1, "gzip"),
        (pickle.dumps({"a": 1}), 1, "a pickle"),
        (b"schema_version = 1\n" + b"#" * 2**22, 1, "larger than 4 MiB"),
    ],
)
def test_a_foreign_file_is_recognized(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "precision.toml"
    path.write_bytes(content)
    with pytest.raises(BadFileError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_archives_and_arrays_are_recognized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "b")
    for name, message in (("a.npy", "a NumPy array"), ("a.zip", "such as a recording")):
        with pytest.raises(BadFileError, match=message):
            load_plan(tmp_path / name)


def test_a_path_that_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precision.toml").touch()
    for path, message in [
        ("precison.toml", "precison.toml: there is no such file; did you mean precision.toml?"),
        ("absent/x.toml", "absent/x.toml: there is no such file; `floatwise plan` writes one"),
        ("bf16-mixed", "bf16-mixed: there is no such file; 'bf16-mixed' is the name of a recipe"),
        (".", ".:1: this is a directory"),
        ("a\0b", "a\0b:1: cannot be read: "),
        ("x" * 300, f"{'x' * 300}:1: cannot be read: File name too long"),
    ]:
        with pytest.raises(BadFileError, match=f"^{re.escape(message)}"):
            load_plan(path)


def test_no_message_shows_how_plans_are_checked() -> None:
    text = _BY_HAND + "[weights]\nmaster = 3\n[reductions]\nreduce_dtype = []\n[[modules]]\n"
    messages = _messages(text)
    assert len(messages) == 4
    assert not any("pydantic" in m or "Traceback" in m or "Input should" in m for m in messages)
