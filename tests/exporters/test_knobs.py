# SPDX-License-Identifier: Apache-2.0
"""Values are checked one by one against the rows of a system: kind, range, version, unknown keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floatwise.errors import BadInputError
from floatwise.exporters import SYSTEMS
from floatwise.exporters.knob import Knob, check_knobs, knob_table
from floatwise.exporters.read import settings_of_text
from floatwise.exporters.system import System
from floatwise.exporters.version import Version, installed_version
from floatwise.language import Text

NOTHING = Text("x", "x")


def row(key: str, kind: Any, **values: Any) -> Knob:
    return Knob(key=key, kind=kind, meaning=NOTHING, source="test", **values)


KNOBS = knob_table(
    row("fp16.enabled", "bool", auto=True),
    row("fp16.power", "int", minimum=0, maximum=24, why="more loses steps"),
    row("fp16.scale", "float", above=0),
    row("fp16.dtype", "str", choices=("fp16", "bf16", "fp32")),
    row("fp16.new", "bool", since="2.0"),
    row("fp16.old", "bool", until="1.0", instead="write fp16.new"),
    row("clip", "float", none=True),
)


def problems(text: str, beneath: str = "") -> list[tuple[int, str]]:
    settings = replace(settings_of_text(text, "yaml", "x"), beneath=beneath)
    found = check_knobs(
        settings, KNOBS, Version.of("1.5"), closed=("", "fp16"), others=("optimizer", "optimizer.params"), title="Tool"
    )
    return [(settings.line(p.loc), p.text) for p in found]


WRONG = [
    ("fp16: {enabled: 'true'}", 'got "true", expected true or false'),
    ("fp16: {enabled: 1}", "got 1, expected true or false"),
    ("fp16: {power: 2.5}", "got 2.5, expected a whole number from 0 to 24\n    why: more loses steps"),
    ("fp16: {power: 40}", "got 40, expected a whole number from 0 to 24\n    why: more loses steps"),
    ("fp16: {scale: 0}", "got 0, expected a number above 0"),
    ("fp16: {scale: .nan}", "got nan, expected a number above 0"),
    ("fp16: {dtype: bff16}", 'got "bff16", expected "fp16" or "bf16" or "fp32"; did you mean \'bf16\'?'),
    ("fp16: {new: true}", "Tool 1.5 does not have this key; it is there since 2.0"),
    ("fp16: {old: true}", "Tool 1.5 does not have this key; it is there before 1.0 only: write fp16.new"),
    ("fp61: {enabled: true}", "Tool knows no such key; did you mean 'fp16'?"),
    ("fp16: {enable: true}", "Tool knows no such key; did you mean 'enabled'?"),
    ("fp16: {zzz: {a: 1, b: 2}}", "Tool knows no such key; known here: dtype, enabled, new, old, power, scale"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=lambda value: value[:30])
def test_a_wrong_value_says_what_is_allowed(text: str, message: str) -> None:
    assert problems(text) == [(1, message)]


@pytest.mark.parametrize(
    "text",
    [
        "fp16: {enabled: true, power: 0, scale: 1, dtype: fp32}",
        "clip: null",
        "optimizer: {params: {lr: 1, betas: [1]}}",
    ],
)
def test_what_is_allowed_is_not_complained_about(text: str) -> None:
    assert problems(text) == []


def test_auto_is_for_files_that_another_system_fills_in() -> None:
    ((_, alone),) = problems("fp16: {enabled: auto}")
    assert alone.startswith('got "auto" in a file that Tool reads by itself')
    assert problems("fp16: {enabled: auto}", beneath="Trainer") == []
    ((_, never),) = problems("fp16: {power: auto}", beneath="Trainer")
    assert never.startswith('got "auto", which Trainer does not fill in')


@pytest.mark.parametrize(("a", "b"), [("0.9", "0.10"), ("1", "1.0.1"), ("2.6", "2.13.0+cpu"), ("5.0.0rc1", "5.1")])
def test_versions_are_compared_by_their_numbers(a: str, b: str) -> None:
    assert Version.of(a) < Version.of(b)
    assert not Version.of(b) < Version.of(a)


def test_trailing_zeros_and_builds_do_not_make_a_version_another() -> None:
    assert Version.of("2.13") == Version.of("2.13.0+cpu")


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(BadInputError, match="got the version 'newest'"):
        Version.of("newest")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("no-such-package-here") is None


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_rows_are_complete(system: System) -> None:
    assert Version.of(system.oldest) <= Version.of(system.read_version)
    for key, knob in system.knobs.items():
        assert key == knob.key
        assert all((knob.meaning.en, knob.meaning.zh, knob.source)), key
        assert knob.default is None or knob.fault(knob.default) is None, f"{key}: its own default is refused"
        for limit in (knob.since, knob.until):
            assert not limit or Version.of(limit)
