# SPDX-License-Identifier: Apache-2.0
"""`floatwise new`: options, questions, what is told, and bad input."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Outcome

FILES = {"README.md", "train.py", "model.py", "data.py", "check.py", "test.py", "precision.toml", "requirements.txt"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    monkeypatch.setenv("COLUMNS", "200")


def test_yes_takes_defaults(floatwise: Call, here: Path) -> None:
    outcome = floatwise("new", "--yes", "--device", "t4")
    assert (outcome.code, outcome.err) == (0, "")
    assert {path.name for path in (here / "training").iterdir()} >= FILES
    assert "pytorch · single · 1 x NVIDIA T4 · image · small · fp16-mixed" in outcome.out
    assert "float16 units and no bfloat16 units" in outcome.out
    commands = [
        "cd training",
        "pip install -r requirements.txt",
        "python test.py",
        "python train.py",
        "python check.py",
    ]
    assert [line.strip() for line in outcome.out.splitlines()[-5:]] == commands


def test_options_decide(floatwise: Call, here: Path) -> None:
    options = ("--parallel", "fsdp2", "--gpus", "16", "--task", "text", "--size", "large", "--trouble", "oom")
    outcome = floatwise("new", "my run", "--yes", "--device", "a100", "--language", "zh", *options, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = outcome.object
    assert told["answers"] == {
        "framework": "pytorch",
        "backend": "",
        "parallel": "fsdp2",
        "size": "large",
        "task": "text",
        "trouble": "oom",
        "device": "nvidia-a100",
        "gpus": 16,
        "data": "",
        "language": "zh",
    }
    assert (told["recipe"], told["micro_batch"], told["accumulation"]) == ("bf16-mixed", 1, 32)
    assert told["state_bytes_per_device"] == -(-told["parameters"] * 4 // 16) * 2 + -(-told["parameters"] * 8 // 16)
    assert "cd 'my run'" in told["commands"]
    assert any("torchrun --nnodes 2 --nproc-per-node 8" in command for command in told["commands"])
    assert sorted(told["files"]) == sorted(str(p.relative_to(here)) for p in (here / "my run").iterdir())
    assert CHINESE.search((here / "my run" / "README.md").read_text(encoding="utf-8"))
    assert not CHINESE.search(outcome.out)  # the terminal's language is its own


def test_the_working_folder(floatwise: Call, here: Path) -> None:
    outcome = floatwise("new", ".", "--yes", "--device", "t4", "--json")
    assert outcome.object["commands"][0] == "pip install -r requirements.txt"
    assert {path.name for path in here.iterdir()} >= FILES


def test_questions_ask_for_the_rest(floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["", "fsdp", "fsdp2", "one", "4", "T4", "tiny", "texts", "text", "nan", "nowhere", ""]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    outcome = floatwise("new", "--json")
    assert outcome.code == 0
    answers = outcome.object["answers"]
    expected = {"framework": "pytorch", "parallel": "fsdp2", "gpus": 4, "device": "nvidia-t4", "size": "tiny"}
    assert answers == answers | expected | {"task": "text", "trouble": "nan", "data": ""}
    for part in (
        "Which framework?",
        "did you mean 'fsdp2'?",
        "got 'one', expected a whole number of 2 or more",
        "did you mean 'text'?",
        "nowhere: there is no such file or folder",
    ):
        assert part in outcome.err
    assert "zero2" not in outcome.err  # what the framework cannot do is not offered


def test_questions_are_not_asked_twice(floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n\n"))
    options = ("--framework", "pytorch", "--parallel", "single", "--device", "t4", "--task", "tabular")
    outcome = floatwise("new", *options)
    assert outcome.code == 0
    asked = ["模型多大？", "目前遇到了什么问题？", "自己的数据路径"]
    assert [part in outcome.err for part in asked] == [True] * 3
    assert "使用哪个框架" not in outcome.err
    assert "下一步" in outcome.out


def refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    for part in parts:
        assert part in outcome.err


BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("--framework", "pytorh"), ("unknown framework 'pytorh'", "did you mean 'pytorch'")),
    (("--device", "t400000"), ("unknown device 't400000'",)),
    (("--parallel", "zero2"), ("pytorch cannot train with zero2", "possible: single, ddp, fsdp2")),
    (("--gpus", "4"), ("got gpus = 4 with parallel = single",)),
    (("--gpus", "0"), ("--gpus",)),
    (("--gpus", "many"), ("--gpus",)),
    (("--backend", "jax"), ("pytorch has no choice of backends",)),
    (("--data", "nowhere.npz"), ("nowhere.npz: there is no such file",)),
    (("--language", "fr"), ("unknown language 'fr'",)),
    (("full",), ("full: the folder is not empty (kept)",)),
    (("full/kept",), ("a file stands where the folder would be written",)),
    (("full/kept/deeper",), ("kept is a file, not a folder",)),
    (("--sizes", "tiny"), ("No such option: --sizes",)),
]


@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize(("arguments", "parts"), BAD, ids=lambda value: " ".join(value)[:50])
def test_bad_input(floatwise: Call, here: Path, arguments: tuple[str, ...], parts: tuple[str, ...], yes: bool) -> None:
    (here / "full").mkdir()
    (here / "full" / "kept").touch()
    options = ("--yes",) if yes else ()
    refused(floatwise("new", *arguments, *options), *parts)
    assert [path.name for path in here.rglob("*")] == ["full", "kept"]


def test_the_end_of_the_input_is_told(floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    refused(floatwise("new"), "the input ended at the question 'One device or several?'", "--yes for all defaults")
    assert list(here.iterdir()) == []
