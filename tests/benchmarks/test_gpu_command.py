# SPDX-License-Identifier: Apache-2.0
"""The command of `benchmarks/gpu`: exit codes, the results file, budgets, and what a stopped run keeps."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.gpu import command
from benchmarks.gpu.command import main
from benchmarks.gpu.needs import missing
from benchmarks.gpu.part import Part
from benchmarks.gpu.parts import PARTS, budget_seconds
from benchmarks.gpu.result import Results, file_name

Run = Callable[[Part], None]


def agreeing(part: Part) -> None:
    part.row("one and one make 2", sum=2)
    part.check("addition", True, "2")
    part.left_out("multiplication", "for another day")


def disagreeing(part: Part) -> None:
    agreeing(part)
    part.check("subtraction", False, "rehearsed 0, real 1")


def raising(part: Part) -> None:
    agreeing(part)
    raise ZeroDivisionError("by zero")


def failing_in_a_piece(part: Part) -> None:
    with part.attempting("parsing"):
        int("x")
    agreeing(part)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def run_here(monkeypatch: pytest.MonkeyPatch, run: Run, output: Path) -> tuple[int, dict[str, Any]]:
    """Runs the command with one part in place of `masters`."""
    monkeypatch.setitem(sys.modules, PARTS["masters"].module, SimpleNamespace(run=run))
    code = main(["--device", "cpu", "--here", "--only", "masters", "--output", str(output)])
    return code, json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("run", "code", "status"),
    [
        (agreeing, 0, "done"),
        (disagreeing, 1, "done"),
        (raising, 1, "failed"),
        (failing_in_a_piece, 1, "done"),
    ],
)
def test_the_exit_code_says_whether_all_agrees(
    run: Run, code: int, status: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, content = run_here(monkeypatch, run, output)
    assert got == code
    assert content["agrees"] is (code == 0)
    assert content["parts"]["masters"]["status"] == status


def test_the_file_has_rows_checks_what_was_left_out_and_the_machine(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, content = run_here(monkeypatch, disagreeing, output)
    assert content["schema_version"] == 1
    assert content["settings"] == {"parts": ["masters"], "minutes": 8.0, "device": "cpu", "size": "tiny"}
    assert content["machine"]["device"] == "CPU"
    assert content["machine"]["torch"] == torch.__version__
    part = content["parts"]["masters"]
    assert part["rows"] == [{"text": "one and one make 2", "sum": 2}]
    assert part["checks"][0] == {"what": "addition", "passed": True, "detail": "2"}
    assert part["left_out"] == [{"what": "multiplication", "why": "for another day"}]
    assert set(content["parts"]) == set(PARTS)
    others = [other for name, other in content["parts"].items() if name != "masters"]
    assert all(other["status"] == "left out" and other["left_out"] for other in others)
    printed = capsys.readouterr().out
    assert "one and one make 2" in printed
    assert "DISAGREES: subtraction: rehearsed 0, real 1" in printed


def test_an_error_is_kept_with_what_was_found_before(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, content = run_here(monkeypatch, raising, output)
    part = content["parts"]["masters"]
    assert part["error"].startswith("ZeroDivisionError: by zero")
    assert len(part["rows"]) == 1


def test_an_error_in_a_piece_is_a_failed_check_and_the_rest_goes_on(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, content = run_here(monkeypatch, failing_in_a_piece, output)
    checks = content["parts"]["masters"]["checks"]
    assert checks[0] == {
        "what": "parsing",
        "passed": False,
        "detail": "ValueError: invalid literal for int() with base 10: 'x'",
    }
    assert checks[1]["passed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "kernel"], "expected some of operators, losses, memory, speed, kernels, scaler, masters"),
        (["--only", ","], "expected some of"),
        (["--minutes", "0"], "expected more than 0"),
        (["--minutes", "soon"], "invalid float value"),
        (["--output", "results"], "expected the name of a .json file"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_a_gpu_it_says_so_and_writes_nothing(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--here", "--output", str(output)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not output.exists()


def test_a_part_in_a_process_of_its_own_reports_to_this_one(output: Path) -> None:
    assert main(["--device", "cpu", "--only", "kernels", "--output", str(output)]) == 0
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["machine"]["torch"] == torch.__version__
    assert content["parts"]["kernels"]["status"] == "needs CUDA"


def test_a_part_that_is_stopped_is_cut_and_named(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LEAST_SECONDS", 0.0)
    assert main(["--device", "cpu", "--only", "kernels", "--minutes", "0.005", "--output", str(output)]) == 0
    part = json.loads(output.read_text(encoding="utf-8"))["parts"]["kernels"]
    assert part["status"] == "cut"
    assert part["left_out"] == [{"what": "the rest", "why": "stopped: its time was over"}]


def test_a_part_without_enough_time_is_not_begun(output: Path) -> None:
    assert main(["--device", "cpu", "--minutes", "0.01", "--output", str(output)]) == 0
    parts = json.loads(output.read_text(encoding="utf-8"))["parts"]
    assert {part["status"] for part in parts.values()} == {"left out"}
    assert "no time" in parts["masters"]["left_out"][0]["why"]


def test_parts_share_the_time_and_pass_on_what_they_do_not_use() -> None:
    names = list(PARTS)
    seconds = 60.0 * 8
    first = budget_seconds(seconds, names)
    assert first == pytest.approx(PARTS[names[0]].share * seconds / sum(row.share for row in PARTS.values()))
    assert budget_seconds(seconds - 1, names[1:]) > budget_seconds(seconds - first, names[1:])
    assert budget_seconds(100.0, names[-1:]) == 100.0


def test_a_piece_without_enough_time_is_left_out_by_name() -> None:
    events: list[dict[str, Any]] = []
    part = Part("cpu", "tiny", 5.0, events.append)
    assert part.has_time_for("short", 1.0)
    assert not part.has_time_for("long", 100.0)
    assert events[0]["value"]["what"] == "long"
    assert "takes about 100 s" in events[0]["value"]["why"]


def test_the_file_stays_whole_when_writing_fails(output: Path) -> None:
    results = Results(output, {})
    results.begin("masters", 1.0)
    results.save()
    before = output.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        results.take("masters", {"event": "row", "value": {"text": object()}})
    assert output.read_text(encoding="utf-8") == before
    assert list(output.parent.iterdir()) == [output]


def test_infinities_and_nans_are_text_in_the_file() -> None:
    events: list[dict[str, Any]] = []
    Part("cpu", "tiny", 5.0, events.append).row("", losses=(1.0, math.nan), scale=math.inf, steps=2)
    assert events[0]["value"] == {"text": "", "losses": [1.0, "nan"], "scale": "inf", "steps": 2}


def test_the_file_is_named_after_device_and_torch(tmp_path: Path) -> None:
    assert file_name("NVIDIA H200", "2.11.0+cu130") == "nvidia-h200-torch2.11.0.json"
    results = Results(tmp_path, {})
    results.begin("masters", 1.0)
    assert results.path is None
    results.take("masters", {"event": "machine", "value": {"device": "Tesla T4", "torch": "2.6.0"}})
    assert [file.name for file in tmp_path.iterdir()] == ["tesla-t4-torch2.6.0.json"]


def test_what_is_not_installed_is_named_with_the_way_to_get_it() -> None:
    assert missing() is None
    sentence = missing({"json": "part of Python", "no_such_module": "pip install no-such-module"})
    assert sentence is not None
    assert sentence.startswith("not installed: no_such_module (pip install no-such-module). ")
