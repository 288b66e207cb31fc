# SPDX-License-Identifier: Apache-2.0
"""What a trial saves goes aside, is found again by the same script, and leaves the user's files alone."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.tap.listening import Listener

from floatwise.tap.core import Tap
from floatwise.tap.scratch import keep_checkpoints_aside


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that took days."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    torch.save({"days": 3}, folder / "best.pt")
    return folder / "best.pt"


@pytest.fixture
def aside(tap: Tap, mine: Path, tmp_path: Path) -> Path:
    """Where a trial saves."""
    folder = tmp_path / "aside"
    folder.mkdir()
    keep_checkpoints_aside(tap, str(folder))
    return folder


@pytest.mark.parametrize("name", ["best.pt", "./best.pt", Path("best.pt")])
def test_a_checkpoint_is_not_overwritten(aside: Path, mine: Path, heard: Listener, name: str | Path) -> None:
    before = mine.read_bytes()
    assert torch.load("best.pt") == {"days": 3}, "what was there before is loaded from where it is"
    for days in (1, 2):
        torch.save({"days": days}, name)
        assert torch.load(mine) == {"days": days}, "the script finds what it has saved, by any name of the file"
    assert mine.read_bytes() == before
    assert len(list(aside.iterdir())) == 1
    assert heard.of("found") == [("found_checkpoint", str(name))]


def test_a_new_file_is_not_left_behind(aside: Path, mine: Path) -> None:
    torch.save({"days": 0}, "last.pt")
    assert [path.name for path in mine.parent.iterdir()] == ["best.pt"]


def rename(old: Path, new: Path) -> None:
    os.rename(old, new)


def replace(old: Path, new: Path) -> None:
    old.replace(new)


def move(old: Path, new: Path) -> None:
    shutil.move(str(old), str(new))


@pytest.mark.parametrize("onto", [rename, replace, move])
def test_saving_beside_and_renaming_leaves_the_old_file(
    aside: Path, mine: Path, onto: Callable[[Path, Path], None]
) -> None:
    before = mine.read_bytes()
    for days in (1, 2):
        part = mine.with_suffix(".tmp")
        torch.save({"days": days}, part)
        onto(part, mine)
        assert torch.load(mine) == {"days": days}
    assert mine.read_bytes() == before
    assert [path.name for path in mine.parent.iterdir()] == ["best.pt"]


@pytest.mark.parametrize("remove", [lambda path: os.remove(path), lambda path: os.unlink(path), Path.unlink])
def test_a_saved_file_can_be_removed(aside: Path, mine: Path, remove: Callable[[Path], None]) -> None:
    old = mine.with_name("step1.pt")
    torch.save({}, old)
    remove(old)
    with pytest.raises(FileNotFoundError):
        torch.load(old)
    with pytest.raises(FileNotFoundError):
        remove(old)


def test_other_files_are_renamed_and_removed_as_ever(aside: Path, mine: Path) -> None:
    log = mine.with_name("log.txt")
    log.write_text("x")
    log.rename(mine.with_name("old.txt"))
    assert mine.with_name("old.txt").read_text() == "x"
    mine.with_name("old.txt").unlink()
    assert [path.name for path in mine.parent.iterdir()] == ["best.pt"]


def test_files_that_the_script_has_opened_itself_are_its_own(aside: Path, mine: Path, heard: Listener) -> None:
    buffer = io.BytesIO()
    torch.save({"days": 0}, buffer)
    buffer.seek(0)
    assert torch.load(buffer) == {"days": 0}
    with mine.with_name("own.pt").open("wb") as file:
        torch.save({"days": 0}, file)
    assert mine.with_name("own.pt").exists()
    assert heard.of("found") == []
