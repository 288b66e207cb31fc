# SPDX-License-Identifier: Apache-2.0
"""A project's folder holds all files or is as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floatwise.errors import BadInputError
from floatwise.scaffold import write_project

FILES = {"README.md": "# 读我\n", "train.py": "print('é')\n"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("where", ["new", "empty", "deep/new"])
def test_files_are_written_in_utf8(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    paths = write_project(tmp_path / where, FILES)
    assert paths == [tmp_path / where / name for name in FILES]
    assert [path.read_bytes().decode() for path in paths] == list(FILES.values())
    assert not [name for name in names((tmp_path / where).parent) if name.startswith(".")]


def test_the_folder_has_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    write_project(tmp_path / "new", FILES)
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "made").stat().st_mode


def test_the_working_folder_can_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "here"
    inside.mkdir()
    monkeypatch.chdir(inside)
    write_project(Path(), FILES)
    assert sorted(os.listdir()) == sorted(FILES)
    assert names(tmp_path) == ["here"]


def test_a_link_to_an_empty_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_project(tmp_path / "link", FILES)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == sorted(FILES)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / name).touch()
    with pytest.raises(BadInputError, match=r"full: the folder is not empty \(a, b, c …\); name a new one"):
        write_project(folder, FILES)
    assert names(folder) == ["a", "b", "c", "d"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="file: a file stands where the folder would be written"):
        write_project(tmp_path / "file", FILES)
    with pytest.raises(BadInputError, match="is a file, not a folder"):
        write_project(tmp_path / "file" / "project", FILES)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *arguments: object, **options: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInputError, match="cannot be written: No space left on device"):
        write_project(tmp_path / "new", FILES)
    assert names(tmp_path) == []


def test_an_unwritable_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write everywhere
    with pytest.raises(BadInputError, match=r"nothing can be written in .*; name another place"):
        write_project(tmp_path / "new", FILES)
