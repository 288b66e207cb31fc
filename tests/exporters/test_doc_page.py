# SPDX-License-Identifier: Apache-2.0
"""`docs/exporting.md`, in both languages, shows what the commands print and what the systems mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Call, floatwise, here
from tests.exporters.doc_page import bfloat16_table, console_blocks, replay, system_table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("exporting.md", "exporting.zh-CN.md")}

__all__ = ["floatwise", "here"]


@pytest.mark.parametrize(("name", "language"), [("exporting.md", "en"), ("exporting.zh-CN.md", "zh")])
def test_commands_print_what_the_page_shows(
    name: str, language: str, floatwise: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", language)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> str:
        done = floatwise(*arguments)
        lines = (done.out + done.err).splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)

    rows = list(replay(console_blocks(PAGES[name]), here, call))
    assert len(rows) >= 10
    for shown, came in rows:
        assert came == shown


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_what_the_systems_say(name: str) -> None:
    lines = PAGES[name].splitlines()
    tables = re.findall(r"(?:^\|.*\n)+", PAGES[name], re.MULTILINE)
    systems, formats = (table.strip().splitlines() for table in tables)
    assert systems[2:] == system_table()[2:]
    headings = tuple(part.strip() for part in formats[0].strip("|").split("|"))
    assert formats == bfloat16_table(headings)
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_the_page_runs(name: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGES[name], re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, name, "exec"), names)
    assert names["lost"] == []
