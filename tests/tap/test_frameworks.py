# SPDX-License-Identifier: Apache-2.0
"""How a trainer is noticed: right after its import, whenever that is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from floatwise.tap.existing import ExistingPrecision
from floatwise.tap.frameworks import _AfterImport, recognise_trainers

NAME = "late_trainer"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the source of a module that can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_module(source: str) -> None:
        (tmp_path / f"{NAME}.py").write_text(source)

    yield write_module
    sys.modules.pop(NAME, None)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """The modules that were called back for."""
    modules: list[ModuleType] = []
    monkeypatch.setattr(sys, "meta_path", [_AfterImport({NAME: modules.append}), *sys.meta_path])
    return modules


def test_the_callback_comes_once_after_the_import(write: Callable[[str], None], told: list[ModuleType]) -> None:
    write("WORD = 'loaded'\n")
    importlib.import_module("json")
    assert told == []
    module = importlib.import_module(NAME)
    assert told == [module]
    assert module.WORD == "loaded"
    importlib.reload(module)
    assert told == [module]


def test_an_import_that_fails_fails_as_ever(write: Callable[[str], None], told: list[ModuleType]) -> None:
    write("raise RuntimeError('broken package')\n")
    with pytest.raises(RuntimeError, match="broken package"):
        importlib.import_module(NAME)
    assert told == []


def test_a_package_that_is_not_there_stays_away(told: list[ModuleType]) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert told == []


def test_recognising_costs_no_import(existing: ExistingPrecision) -> None:
    before = set(sys.modules)
    recognise_trainers(existing)
    assert set(sys.modules) == before
    assert isinstance(sys.meta_path[0], _AfterImport)
