# SPDX-License-Identifier: Apache-2.0
"""`floatwise explain`, `floatwise info`, help and version."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Call

from floatwise import __version__

#: The examples that the help gives, and an alias.
NAMES = [
    ("bfloat16", "bfloat16"),
    ("fp8_e4m3", "float8_e4m3fn"),
    ("nvfp4", "nvfp4"),
    ("T4", "NVIDIA T4"),
    ("RTX 3090", "RTX 3090"),
    ("half", "float16"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_a_page_for_people_and_one_for_machines(floatwise: Call, name: str, shown: str) -> None:
    page = floatwise("explain", name)
    assert (page.code, page.err) == (0, "")
    assert shown in page.out
    machine = floatwise("explain", name, "--json")
    assert (machine.code, machine.err) == (0, "")
    assert isinstance(machine.object, dict)


def test_info(floatwise: Call) -> None:
    page = floatwise("info")
    assert (page.code, page.err) == (0, "")
    machine = floatwise("info", "--json")
    assert (machine.code, machine.err) == (0, "")
    assert machine.object


def test_version(floatwise: Call) -> None:
    assert floatwise("--version").out == f"floatwise {__version__}\n"


@pytest.mark.parametrize("command", ["plan", "run", "info", "explain"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(floatwise: Call, command: str, flag: str) -> None:
    shown = floatwise(command, flag)
    assert (shown.code, shown.err) == (0, "")
    assert f"floatwise {command}" in shown.out


def test_the_help_gives_these_examples(floatwise: Call) -> None:
    shown = " ".join(floatwise("explain", "--help").out.split())
    assert all(name in shown for name, _ in NAMES[:-1])


def test_help_of_the_whole_names_every_command(floatwise: Call) -> None:
    shown = floatwise("--help").out
    assert all(command in shown for command in ("plan", "run", "info", "explain"))


def test_a_recipe_has_a_page(floatwise: Call) -> None:
    page = floatwise("explain", "bf16-mixed")
    assert page.code == 0
    assert 'compute_dtype = "bfloat16"' in page.out
    assert json.loads(floatwise("explain", "bf16-mixed", "--json").out)["recipe"] == "bf16-mixed"
