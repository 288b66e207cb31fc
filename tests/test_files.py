# SPDX-License-Identifier: Apache-2.0
"""A file is written whole, through links, and never in the place of something that is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floatwise.errors import BadInputError
from floatwise.files import write_whole


def test_the_old_mode_and_the_link_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "new\n", "the text")
    assert link.is_symlink()
    assert real.read_bytes() == b"new\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "real.txt"]


WRONG = [
    ("missing/a.txt", "make the directory first"),
    ("folder", "name a file in that directory"),
    ("pipe", "it is no ordinary file"),
    ("nul\0l", "embedded null"),
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(("name", "message"), WRONG, ids=["no folder", "a folder", "a pipe", "a null character"])
def test_what_cannot_be_written_is_told_and_left(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInputError, match=message):
        write_whole(tmp_path / name, "new", "the text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
