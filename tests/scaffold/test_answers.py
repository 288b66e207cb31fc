# SPDX-License-Identifier: Apache-2.0
"""Answers: defaults, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floatwise.errors import BadInputError, FloatwiseError, UnknownNameError
from floatwise.scaffold import FRAMEWORKS, Answers, combinations
from floatwise.scaffold.framework import PARALLELS

DEFAULTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"device": "cpu-avx2"}, {"size": "tiny", "gpus": 1, "backend": "", "parallel": "single", "task": "image"}),
    ({"device": "Tesla T4"}, {"size": "small", "device": "nvidia-t4"}),
    ({"device": "t4", "parallel": "ddp"}, {"gpus": 2}),
    ({"device": "t4", "parallel": "fsdp2", "gpus": 8}, {"gpus": 8}),
]


@pytest.mark.parametrize(("given", "filled"), DEFAULTS)
def test_defaults_are_filled_in(given: dict[str, Any], filled: dict[str, Any]) -> None:
    answers = Answers(**given)
    assert {name: getattr(answers, name) for name in filled} == filled


def test_the_language_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    assert Answers(device="t4").language == "zh"
    assert Answers(device="t4", language="en").language == "en"


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"framework": "pytorhc"}, ("unknown framework 'pytorhc'", "did you mean 'pytorch'?")),
    ({"parallel": "fsdp"}, ("unknown parallelism 'fsdp'", "'fsdp2'")),
    ({"size": "huge"}, ("unknown size 'huge'", "known: large, medium, small, tiny")),
    ({"task": "texts"}, ("unknown task 'texts'", "did you mean 'text'?")),
    ({"trouble": "NaNs"}, ("unknown trouble 'NaNs'", "did you mean 'nan'?")),
    ({"language": "fr"}, ("unknown language 'fr'", "known: en, zh")),
    ({"device": "t400000"}, ("unknown device 't400000'",)),
    ({"backend": "jax"}, ("got backend = 'jax'", "pytorch has no choice of backends")),
    ({"parallel": "zero2"}, ("pytorch cannot train with zero2", "DeepSpeed", "possible: single, ddp, fsdp2")),
    ({"gpus": 4}, ("got gpus = 4 with parallel = single, expected 1", "--parallel ddp or fsdp2")),
    ({"parallel": "ddp", "gpus": 1}, ("got gpus = 1 with parallel = ddp, expected 2 or more", "--parallel single")),
    ({"parallel": "ddp", "gpus": -2}, ("got gpus = -2",)),
    ({"device": "tpu v5e"}, ("scripts for pytorch run on GPUs and CPUs", "is a tpu")),
    ({"device": "m3", "parallel": "ddp"}, ("Apple M3", "one GPU", "--parallel single")),
    ({"data": "nowhere.npz"}, ("nowhere.npz: there is no such file or folder",)),
    ({"data": "table.csv"}, ("for the task image, data is an .npz file",)),
    ({"data": "table.csv", "task": "text"}, ("for the task text, data is a .txt file",)),
    ({"data": "folder", "task": "tabular"}, ("for the task tabular, data is a .csv file",)),
]


@pytest.mark.parametrize(("given", "parts"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], parts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FloatwiseError) as caught:
        Answers(**{"device": "t4", **given})
    assert isinstance(caught.value, BadInputError | UnknownNameError)
    for part in parts:
        assert part in str(caught.value)


def test_data_is_kept_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert Answers(device="t4", task="tabular", data="table.csv").data == str(tmp_path / "table.csv")


def test_every_combination_is_possible_or_says_why_not() -> None:
    possible = set(combinations())
    assert ("pytorch", "", "fsdp2") in possible
    for row in FRAMEWORKS.values():
        for backend in row.backends or ("",):
            for parallel in PARALLELS:
                why = row.why_not(parallel, backend)
                assert (why is None) == ((row.name, backend, parallel) in possible)
                assert why is None or (why.en and why.zh)


@pytest.mark.parametrize(("framework", "backend", "parallel"), list(combinations()))
def test_every_combination_is_accepted(framework: str, backend: str, parallel: str) -> None:
    answers = Answers(framework=framework, backend=backend, parallel=parallel, device="a100")
    assert answers.row.name == framework
