# SPDX-License-Identifier: Apache-2.0
"""Running a script as `python script arguments` would."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from floatwise.errors import ScriptError
from floatwise.tap.execute import explain_failure, run_script
from floatwise.tap.patches import Patches
from floatwise.tap.seeding import seed_everything

#: Prints what a script can see of how it was started.
INTROSPECTIVE = """\
import sys, os
print(__name__, __file__, sys.argv, os.path.basename(sys.path[0]), __doc__, __spec__, __package__)
print(sys.modules["__main__"].__dict__ is globals(), __builtins__ is sys.modules["builtins"])
import helper
print(helper.WORD)
count: int = 3
print(sorted(__annotations__))
if __name__ == "__main__":
    print("main")
"""


@pytest.fixture(autouse=True)
def _own_main(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    yield
    sys.modules.pop("helper", None)


def test_it_sees_what_python_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(INTROSPECTIVE)
    (folder / "helper.py").write_text("WORD = 'found beside the script'\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "project/train.py", "--lr", "0.1"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    run_script("project/train.py", ["--lr", "0.1"])
    ours = capsys.readouterr().out
    # The package's loader is not part of what a script is promised.
    assert ours.splitlines()[1:] == plain.splitlines()[1:]
    assert ours.split()[:5] == plain.split()[:5]


BAD_FILES: list[tuple[bytes, str]] = [
    (b"for x in y\n    pass\n", "train.py:1: not valid Python: expected ':'"),
    (b"\x89PNG\r\n\x1a\n\x00\x00", "train.py"),
    ("text = 'Größe'".encode("latin-1"), "train.py"),
    (b"#!/bin/bash\nexport A=1\n", "train.py:2: not valid Python"),
    (b"\x00\x00", "not"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_what_is_not_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_bytes(content)
    with pytest.raises(ScriptError) as caught:
        run_script("train.py", [])
    assert message in str(caught.value)
    assert caught.value.traceback == ""


@pytest.mark.parametrize(("path", "why"), [("missing.py", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, why: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScriptError, match=f"cannot read {path}: {why}.*give the path"):
        run_script(path, [])


FAILURES: list[tuple[str, str, bool]] = [
    ("import a_package_nobody_has", "install the package that provides 'a_package_nobody_has'", True),
    ("raise ValueError('bad lr')", "train.py:1: the script failed with ValueError: bad lr", True),
    ("import os; os.environ['LOCAL_RANK']", "it expects torchrun: torchrun --nproc-per-node", True),
    ("raise RuntimeError('no CUDA device')", "this machine has no CUDA device", True),
    ("import sys; sys.exit(3)", "train.py:1: the script ended itself with exit code 3", False),
    ("import sys; sys.exit('no data')", "train.py:1: the script ended itself and said: no data", False),
    ("raise KeyError('x')", "first make the script run by itself: python train.py", True),
]


@pytest.mark.parametrize(("source", "message", "has_traceback"), FAILURES)
def test_a_failure_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str, has_traceback: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    Path("train.py").write_text(source)
    with pytest.raises((Exception, SystemExit)) as caught:
        run_script("train.py", [])
    told, traceback = explain_failure("train.py", caught.value)
    assert message in told
    assert bool(traceback) is has_traceback
    assert "floatwise" not in traceback


def drawn() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), torch.rand(1).item()


def test_a_script_without_seeds_gets_some() -> None:
    for offset in (0, 5):
        results = []
        for _ in range(2):
            patches = Patches()
            seed_everything(3, offset, patches)
            results.append(drawn())
            patches.undo()
        assert results[0] == results[1]


def test_the_scripts_own_seeds_are_shifted() -> None:
    def seeded(offset: int) -> tuple[float, float, float]:
        patches = Patches()
        seed_everything(0, offset, patches)
        random.seed(7)
        numpy.random.seed(7)
        torch.manual_seed(7)
        result = drawn()
        patches.undo()
        return result

    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    plain = drawn()
    assert seeded(0) == plain
    assert all(a != b for a, b in zip(seeded(0), seeded(1), strict=True))
    assert seeded(1) == seeded(1)


def test_seeds_that_are_no_numbers_stay() -> None:
    patches = Patches()
    seed_everything(0, 1, patches)
    random.seed("a word")
    word = random.random()
    numpy.random.seed(None)
    patches.undo()
    random.seed("a word")
    assert random.random() == word


def test_an_executor_left_open_does_not_keep_the_script_from_ending(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(2)\n"
        "assert pool.submit(int, '7').result() == 7\n"
    )
    done = subprocess.run([sys.executable, "-c", ENDS, str(script)], timeout=60, check=True, capture_output=True)
    assert done.stdout.split() == [b"ended"]


ENDS = "import sys; from floatwise.tap.execute import run_script; run_script(sys.argv[1], ()); print('ended')"
