# SPDX-License-Identifier: Apache-2.0
"""`floatwise run`: the script's own output and exit code, and a line about the plan on stderr."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import SCRIPTS, Call, Outcome
from tests.tap.running import as_main, run_alone

from floatwise.cli import run
from floatwise.plan import recipe, save_plan


@pytest.fixture
def trained(here: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs a script in this process as `floatwise run` does."""

    def call(*arguments: str) -> Outcome:
        capfd.readouterr()
        with as_main(here):
            code = run(["run", *arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


PLAIN = [
    ("plain_loop.py", ()),
    ("main_function.py", ()),
    ("manual_sgd.py", ()),
    ("lbfgs.py", ()),
    ("argparse_script.py", ("run1", "--lr", "0.05", "--steps", "12")),
    ("relative_file.py", ()),
]


@pytest.mark.parametrize(("script", "arguments"), PLAIN, ids=lambda value: value if isinstance(value, str) else "")
def test_in_float32_a_script_prints_what_it_prints_alone(
    trained: Call, here: Path, script: str, arguments: tuple[str, ...]
) -> None:
    for name in (script, "relative_data.txt"):
        shutil.copy(SCRIPTS / name, here)
    alone = run_alone(script, here, arguments)
    done = trained(script, "--recipe", "fp32", "--", *arguments)
    assert (done.code, done.out) == (0, alone)
    assert done.err.startswith("floatwise: fp32: ")
    assert done.err.endswith("optimizer steps\n")
    assert done.err.count("\n") == 1


def test_under_a_plan_it_trains_and_says_so(trained: Call, here: Path) -> None:
    shutil.copy(SCRIPTS / "plain_loop.py", here)
    save_plan(recipe("bf16-mixed", script="plain_loop.py"), here / "precision.toml")
    done = trained("plain_loop.py")
    assert done.code == 0
    assert len(done.out.splitlines()) == 30
    assert done.err == "floatwise: bf16-mixed: 30 optimizer steps\n"


def test_a_plan_made_for_another_script_is_pointed_out(trained: Call, here: Path) -> None:
    shutil.copy(SCRIPTS / "ends_early.py", here)
    save_plan(recipe("fp32", script="other.py"), here / "precision.toml")
    done = trained("ends_early.py")
    assert done.code == 0
    assert "precision.toml was made for other.py, not for ends_early.py" in done.err


def test_without_a_plan_the_hardware_decides(trained: Call, here: Path) -> None:
    shutil.copy(SCRIPTS / "ends_early.py", here)
    done = trained("ends_early.py")
    assert done.code == 0
    assert "no precision.toml here: using " in done.err
    assert "`floatwise plan ends_early.py`" in done.err


EXITS: list[tuple[str, int, str]] = [
    ("import sys; sys.exit(3)", 3, ""),
    ("import sys; sys.exit(0)", 0, ""),
    ("import sys; sys.exit()", 0, ""),
    ("import sys; sys.exit('no data')", 1, "no data\n"),
    ("raise SystemExit(7)", 7, ""),
    ("print('nothing to train')", 0, ""),
]


@pytest.mark.parametrize(("source", "code", "told"), EXITS)
def test_the_scripts_exit_code_is_the_runs(trained: Call, here: Path, source: str, code: int, told: str) -> None:
    (here / "train.py").write_text(source)
    done = trained("train.py", "--recipe", "fp32")
    assert done.code == code
    assert done.err.replace("floatwise: fp32: the script took no optimizer step\n", "") == told


def test_a_script_that_fails_shows_its_own_frames(trained: Call, here: Path) -> None:
    (here / "train.py").write_text("def work():\n    raise ValueError('bad lr')\n\nwork()\n")
    done = trained("train.py", "--recipe", "fp32")
    assert done.code == 2
    assert done.err.startswith("Traceback (your code's frames):\n")
    assert "floatwise: train.py:2: the script failed with ValueError: bad lr" in done.err
    assert "optimizer step" not in done.err


@pytest.mark.parametrize("command", [("-m", "floatwise"), ("-c", "from floatwise.__main__ import main; main()")])
def test_as_a_command(here: Path, command: tuple[str, str]) -> None:
    (here / "train.py").write_text("import sys\nprint(sys.argv, __name__)\nsys.exit(5)\n")
    arguments = ["run", "--recipe", "fp32", "train.py", "--", "--lr", "1"]
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "FLOATWISE_LANG": "en"},
    )
    assert (done.returncode, done.stdout) == (5, "['train.py', '--lr', '1'] __main__\n")
