# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: a message that says what to do, exit code 2, nothing on stdout and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import SCRIPTS, Call, Outcome

PLAIN = SCRIPTS / "plain_loop.py"
BROKEN = SCRIPTS / "broken"


def refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback (most recent call last)" not in outcome.err
    for part in parts:
        assert part in outcome.err


ARGUMENTS: list[tuple[tuple[str | Path, ...], tuple[str, ...]]] = [
    (("plan",), ("got neither a script nor a recording", "floatwise plan train.py")),
    (("plan", "nope.py"), ("nope.py: no such file; give the path of a Python training script",)),
    (("plan", SCRIPTS), (": a folder; give the path",)),
    (("plan", PLAIN, "--target", "t400000"), ("unknown device 't400000'", "nearest: ")),
    (("plan", PLAIN, "--target", "nvidia-t5"), ("did you mean", "'nvidia-t4'")),
    (("plan", PLAIN, "--steps", "0"), ("--steps",)),
    (("plan", PLAIN, "--steps", "many"), ("--steps",)),
    (("plan", PLAIN, "--lr", "0.1"), ("No such option: --lr", "arguments of your own script come after --")),
    (("plan", PLAIN, "-o", "missing/plan.toml"), ("its folder does not exist; make it first",)),
    (("plan", PLAIN, "-o", "plan"), ("a plan file's name ends in .toml; try -o plan.toml",)),
    (("plan", PLAIN, "-o", "folder.toml"), ("folder.toml: a folder stands where a file would be written",)),
    (("plan", PLAIN, "--report", "missing/page.html"), ("its folder does not exist", "choose another --report")),
    (("plan", PLAIN, "--report", "page.pdf"), ("a report's name ends in .html; try --report page.html",)),
    (("plan", PLAIN, "--target", "t4", "--target", "t400000"), ("unknown device 't400000'",)),
    (("plan", "--recording", "nope.recording"), ("nope.recording: cannot be read: No such file",)),
    (("plan", "--recording", PLAIN), ("not a Floatwise recording",)),
    (("report",), ("Missing argument",)),
    (("report", "nope.recording"), ("nope.recording: cannot be read: No such file",)),
    (("report", "precision.toml"), ("precision.toml: a plan; give the recording beside it, precision.recording",)),
    (("report", PLAIN, "-o", "page.html"), ("not a Floatwise recording",)),
    (("run",), ("Missing argument",)),
    (("run", "nope.py", "--recipe", "fp32"), ("nope.py: no such file; give the path of a Python training script",)),
    (("run", PLAIN, "--recipe", "bf16-mixd"), ("unknown recipe 'bf16-mixd'", "did you mean 'bf16-mixed'")),
    (("run", PLAIN, "--plan", "nope.toml"), ("nope.toml: there is no such file",)),
    (("run", PLAIN, "--plan", PLAIN), ("plain_loop.py:",)),
    (("run", PLAIN, "--plan", "a.toml", "--recipe", "fp32"), ("got both --plan and --recipe; give one of them",)),
    (("run", PLAIN, "--epochs", "3"), ("arguments of your own script come after --",)),
    (("explain",), ("Missing argument",)),
    (("explain", "blfoat16"), ("unknown format, device, recipe or system 'blfoat16'", "did you mean 'bfloat16'")),
    (("info", "--verbose"), ("No such option: --verbose",)),
    (("frobnicate",), ("No such command 'frobnicate'",)),
]


@pytest.mark.parametrize(("arguments", "parts"), ARGUMENTS, ids=lambda value: " ".join(map(str, value))[:60])
def test_arguments(floatwise: Call, here: Path, arguments: tuple[str | Path, ...], parts: tuple[str, ...]) -> None:
    (here / "folder.toml").mkdir()
    refused(floatwise(*arguments), *parts)
    assert [path.name for path in here.iterdir()] == ["folder.toml"]


def test_a_hint_about_scripts_is_for_commands_that_run_scripts(floatwise: Call) -> None:
    assert "your own script" not in floatwise("info", "--verbose").err


def test_a_damaged_recording(floatwise: Call, here: Path, recording: Path) -> None:
    (here / "half.recording").write_bytes(recording.read_bytes()[:-200])
    refused(floatwise("plan", "--recording", "half.recording"), "half.recording: not a Floatwise recording")
    assert [path.name for path in here.iterdir()] == ["half.recording"]


BAD_SCRIPTS: list[tuple[str, tuple[str, ...]]] = [
    ("syntax_error.py", ("syntax_error.py:6: not valid Python: expected ':'",)),
    ("raises_on_import.py", ("Traceback (your code's frames):", "the script failed with ImportError")),
    ("missing_package.py", ("Traceback (your code's frames):", "install the package that provides 'our_internal")),
    ("not_python.py", ("not_python.py: not valid Python",)),
    ("shell_script.py", ("shell_script.py:2: not valid Python",)),
    ("empty.py", ("ended without a training step: 0 module calls",)),
    ("never_steps.py", ("ended without a training step: 50 module calls", "  | batch 0")),
    ("no_backward.py", ("does it call loss.backward()?",)),
    ("no_parameters.py", ("Traceback (your code's frames):", "no_parameters.py:17", "does not require grad")),
    ("cuda_only.py", ("this machine has no CUDA device",)),
    ("sys_exit.py", ("the script ended itself with exit code 3", "  | cannot find the training data")),
    ("calls_os_exit.py", ("the script ended the process itself with exit code 17", "  | watchdog: giving up")),
    ("raises_midway.py", ("Traceback (your code's frames):", "raises_midway.py:9", "IndexError")),
    ("two_files_deep_error.py", ("two_files_deep_error.py", "scaling.py:6: the script failed with TypeError")),
]
#: One of each kind of answer.
QUICK = {"syntax_error.py", "raises_on_import.py"}


@pytest.mark.parametrize(
    ("script", "parts"),
    [pytest.param(*row, id=row[0], marks=() if row[0] in QUICK else pytest.mark.slow) for row in BAD_SCRIPTS],
)
def test_scripts_that_cannot_be_recorded(floatwise: Call, here: Path, script: str, parts: tuple[str, ...]) -> None:
    refused(floatwise("plan", BROKEN / script, "--no-measure"), *parts)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("script", "parts"), [row for row in BAD_SCRIPTS if "calls_os_exit" not in row[0]])
def test_every_bad_script_has_its_row(script: str, parts: tuple[str, ...]) -> None:
    assert (BROKEN / script).is_file()
    assert parts


@pytest.mark.slow
def test_the_users_own_traceback_and_no_line_of_ours(floatwise: Call) -> None:
    shown = floatwise("plan", BROKEN / "two_files_deep_error.py").err
    assert shown.count('File "') == 3
    assert "src/floatwise" not in shown
    assert "site-packages" not in shown


@pytest.mark.slow
def test_an_existing_plan_survives_a_script_that_fails(floatwise: Call, here: Path) -> None:
    (here / "precision.toml").write_text("old plan")
    refused(floatwise("plan", BROKEN / "raises_midway.py"))
    assert (here / "precision.toml").read_text() == "old plan"
    assert [path.name for path in here.iterdir()] == ["precision.toml"]


def test_without_pytorch_it_says_what_to_install(floatwise: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (("plan", PLAIN), ("run", PLAIN, "--recipe", "fp32")):
        refused(floatwise(*command), "this needs PyTorch", "pip install 'floatwise[torch]'")


def test_a_recording_of_another_script(floatwise: Call, recording: Path) -> None:
    refused(
        floatwise("plan", SCRIPTS / "accumulation.py", "--recording", recording),
        "recorded from plain_loop.py, got",
        "leave out --recording",
    )
