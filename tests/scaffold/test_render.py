# SPDX-License-Identifier: Apache-2.0
"""Every project that can be asked for renders to clean source in its own language."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scaffold.projects import write

from floatwise.exporters import SYSTEMS
from floatwise.plan import load_plan
from floatwise.scaffold import Answers, choose, combinations, render
from floatwise.scaffold.answers import TASKS, TROUBLES
from floatwise.scaffold.pins import PINS

ROOT = Path(__file__).parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
COMMON = {"README.md", "precision.toml", "train.py", "model.py", "data.py", "check.py", "test.py", "requirements.txt"}
#: A device of each kind of plan.
DEVICES = ("nvidia-a100", "nvidia-t4", "nvidia-p100")
#: Files that exporters write: their lines are as long as our own source's.
EXPORTED_LINE = 120
LINE = 100


def projects(framework: str, backend: str, parallel: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Writes every task and trouble, each device and language in turn."""
    number = 0
    for task in TASKS:
        for trouble in TROUBLES:
            language = ("en", "zh")[number % 2]
            device = "nvidia-t4" if trouble == "nan" else DEVICES[number % 3]
            number += 1
            folder = root / f"{task}-{trouble}-{device}-{language}"
            yield (
                language,
                write(
                    folder,
                    framework=framework,
                    backend=backend,
                    parallel=parallel,
                    task=task,
                    trouble=trouble,
                    device=device,
                    language=language,
                ),
            )


@pytest.mark.parametrize(("framework", "backend", "parallel"), list(combinations()))
def test_projects_are_clean(tmp_path: Path, framework: str, backend: str, parallel: str) -> None:
    for language, project in projects(framework, backend, parallel, tmp_path):
        names = {path.name for path in project.iterdir()}
        assert names >= COMMON
        for path in project.iterdir():
            check_text(path, language)
        load_plan(project / "precision.toml")
        readme = (project / "README.md").read_text(encoding="utf-8")
        assert [name for name in names - {"README.md"} if f"`{name}`" not in readme] == []
        check_style(project)


def check_text(path: Path, language: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\{% | %\}|\{#|\{\{ ", text), f"{path}: a piece of the template is left"
    assert "floatwise" not in {name for name in imported(text)} if path.suffix == ".py" else True
    assert text.endswith("\n")
    assert not text.endswith("\n\n"), path
    if path.suffix in (".py", ".md"):
        if language == "en":
            assert not CHINESE.search(text), f"{path}: {CHINESE.search(text)}"
        elif path.name in COMMON:
            assert CHINESE.search(text), path
    if path.suffix == ".py":
        compile(text, path, "exec")
    if path.suffix == ".json":
        json.loads(text)


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def check_style(project: Path) -> None:
    own = [path.name for path in project.glob("*.py") if "precision" not in path.name]
    for files, line in ((["."], EXPORTED_LINE), (own, LINE)):
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--extend-select", "E501"]
        done = subprocess.run(
            [*ruff, "--line-length", str(line), *files], cwd=project, capture_output=True, encoding="utf-8"
        )
        assert done.returncode == 0, f"{project.name}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("parallel", ["single", "ddp", "fsdp2"])
def test_pytorch_sources_are_formatted(tmp_path: Path, parallel: str) -> None:
    for _, project in projects("pytorch", "", parallel, tmp_path):
        files = [path.name for path in project.glob("*.py") if "precision" not in path.name]
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--isolated",
            "--no-cache",
            "--diff",
            "--line-length",
            str(LINE),
        ]
        done = subprocess.run([*ruff, *files], cwd=project, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, f"{project.name}\n{done.stdout}"


def test_a_script_of_one_process_has_no_distributed_code() -> None:
    answers = Answers(device="a100")
    train = render(answers, choose(answers)).files["train.py"]
    assert not re.search(r"\bdist\b|rank|world\b(?!_size)|no_sync|fully_shard|GradScaler", train)


def test_comments_of_exporters_are_in_the_projects_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    answers = Answers(device="t4", language="zh")
    assert CHINESE.search(render(answers, choose(answers)).files["precision.py"])
    monkeypatch.delenv("FLOATWISE_LANG")
    answers = Answers(device="t4", language="en")
    assert not CHINESE.search(render(answers, choose(answers)).files["precision.py"])


def test_requirements_are_the_versions_that_are_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = {line.partition(";")[0] for line in lines}
    names = {version.partition("==")[0] for version in tested}
    pinned = [line.partition(";")[0] for lines in PINS.values() for line in lines]
    held = [version for version in pinned if version.partition("==")[0] in names]
    assert len(held) > 5
    assert [version for version in held if version not in tested] == []


@pytest.mark.parametrize(
    ("answers", "wanted", "unwanted"),
    [
        ({"task": "image"}, {"torch", "numpy", "scikit-learn"}, {"pillow"}),
        ({"task": "text"}, {"torch", "numpy"}, {"scikit-learn"}),
        ({"task": "image", "data": "pictures"}, {"torch", "numpy", "pillow"}, {"scikit-learn"}),
    ],
)
def test_requirements_name_what_the_project_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, Any],
    wanted: set[str],
    unwanted: set[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    given = Answers(device="a100", **answers)
    text = render(given, choose(given)).files["requirements.txt"]
    names = {line.partition("==")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == wanted
    assert not names & unwanted
    assert "pytorch.org/get-started" in text


def test_frameworks_use_exporters_that_exist() -> None:
    for framework, backend, parallel in combinations():
        for device in DEVICES:
            answers = Answers(framework=framework, backend=backend, parallel=parallel, device=device)
            for config in answers.row.configs(answers, choose(answers)):
                assert config.system in SYSTEMS
