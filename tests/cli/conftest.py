# SPDX-License-Identifier: Apache-2.0
"""An empty folder to work in, and the command line called in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.tap.running import record_here

from floatwise.cli import run

SCRIPTS = Path(__file__).parents[1] / "scripts"


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line has given.

    Attributes:
      code: The exit code.
      out: What it wrote to stdout.
      err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        value: dict[str, Any] = json.loads(self.out)
        return value


Call = Callable[..., Outcome]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def floatwise(here: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Calls the command line in this process."""

    def call(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a small script, made once."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copy(SCRIPTS / "plain_loop.py", folder)
    path = folder / "kept.recording"
    ran = record_here("plain_loop.py", folder, 6, keep=path)
    assert ran.recording is not None
    return path
