# SPDX-License-Identifier: Apache-2.0
"""What the README says, in both languages, is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from floatwise.exporters import SYSTEMS
from floatwise.hardware import DEVICES
from floatwise.plan import RECIPES

ROOT = Path(__file__).resolve().parents[1]
README = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")}


def commands(text: str) -> list[str]:
    """Returns the lines of the shell blocks without their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]


def test_both_languages_have_the_same_commands_sections_and_figures() -> None:
    english, chinese = README.values()
    assert commands(english) == commands(chinese)
    assert [len(re.findall(mark, english, re.MULTILINE)) for mark in (r"^## ", r"^\|", r"^```")] == [
        len(re.findall(mark, chinese, re.MULTILINE)) for mark in (r"^## ", r"^\|", r"^```")
    ]
    ratios = r"\d+\.\d+ ?×"
    figures = [
        re.findall(ratios, text.partition("## Figures")[2] or text.partition("## 数据")[2])
        for text in (english, chinese)
    ]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", README)
def test_counts_names_and_links(name: str) -> None:
    text = README[name]
    assert f" {len(DEVICES)} " in text
    assert {14: ("fourteen systems", "十四个系统")}[len(SYSTEMS)][name != "README.md"] in text.replace("\n", " ")
    for recipe in re.findall(r"`((?:bf16|fp16|fp8)-[a-z]+|tf32|fp32)`", text):
        assert recipe in RECIPES
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    assert "@@" not in text


@pytest.mark.parametrize("name", README)
def test_the_two_commands_come_first(name: str) -> None:
    assert [line.split("#")[0].strip() for line in commands(README[name])[:2]] == ["make demo", "make test"]
