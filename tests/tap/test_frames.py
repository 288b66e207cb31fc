# SPDX-License-Identifier: Apache-2.0
"""Whose line it is: the user's, a library's or ours."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy
import pytest
import torch

import floatwise.tap.core
from floatwise.tap import frames

OURS_AND_LIBRARIES = [
    floatwise.tap.core.__file__,
    json.__file__,
    torch.__file__,
    numpy.__file__,
    "<string>",
    "<frozen importlib._bootstrap>",
]


@pytest.mark.parametrize("path", OURS_AND_LIBRARIES)
def test_files_that_are_not_the_users(path: str) -> None:
    assert not frames.is_users_file(path)


@pytest.mark.parametrize("path", ["train.py", "sub/train.py", __file__, "/data/project/model.py"])
def test_files_that_are(path: str) -> None:
    assert frames.is_users_file(path)


def run(source: str, path: Path) -> dict[str, object]:
    path.write_text(source, encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(source, str(path), "exec"), names)
    return names


def test_the_innermost_users_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from floatwise.tap.frames import users_line\n\ndef where():\n    return users_line()\n\nline = where()\n"
    assert run(source, tmp_path / "train.py")["line"] == "train.py:4"


def test_a_file_elsewhere_keeps_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    source = "from floatwise.tap.frames import users_line\nline = users_line()\n"
    assert run(source, tmp_path / "train.py")["line"] == f"{tmp_path / 'train.py'}:2"


def test_what_a_library_does_while_it_is_imported_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "decorated_library.py").write_text("from floatwise.tap.frames import users_line\nline = users_line()\n")
    monkeypatch.syspath_prepend(str(library))
    try:
        assert importlib.import_module("decorated_library").line is None
    finally:
        sys.modules.pop("decorated_library")


def failure(source: str, path: Path) -> BaseException:
    try:
        run(source, path)
    except Exception as error:
        return error
    raise AssertionError("it was meant to fail")


def test_a_traceback_has_the_users_frames_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "import json\n\ndef read(text):\n    return json.loads(text)\n\nread('{')\n"
    error = failure(source, tmp_path / "train.py")
    told = frames.trimmed_traceback(error)
    assert told.startswith("Traceback (your code's frames):\n")
    assert told.count("train.py") == 2
    assert "json/decoder" not in told
    assert __file__ not in frames.trimmed_traceback(error) or frames.is_users_file(__file__)
    assert told.rstrip().splitlines()[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert frames.last_users_line(error.__traceback__) == "train.py:4"


def test_without_a_users_frame_the_last_one_stays() -> None:
    try:
        json.loads("{")
    except ValueError as caught:
        error = caught
    trace = error.__traceback__
    assert trace is not None
    told = frames.trimmed_traceback(error.with_traceback(trace.tb_next))
    assert "your code" not in told
    assert "json/" in told
    assert frames.last_users_line(trace.tb_next) == ""
