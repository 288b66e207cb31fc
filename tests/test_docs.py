# SPDX-License-Identifier: Apache-2.0
"""The code in docs/ runs, and both languages show the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from floatwise.plan import RECIPES

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAIRS = [(name, name.replace(".md", ".zh-CN.md")) for name in ("pytorch.md", "loss-scaling.md", "rehearsal.md")]
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for pair in PAIRS for name in pair}


def blocks(text: str) -> list[str]:
    """Returns the Python blocks, without their comments."""
    return [re.sub(r"\s+#.*", "", block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("pair", PAIRS)
def test_both_languages_have_the_same_code_sections_and_tables(pair: tuple[str, str]) -> None:
    english, chinese = (PAGES[name] for name in pair)
    assert blocks(english) == blocks(chinese)
    for mark in (r"^## ", r"^\|", r"^- "):
        assert len(re.findall(mark, english, re.MULTILINE)) == len(re.findall(mark, chinese, re.MULTILINE)), mark


@pytest.mark.parametrize("name", PAGES)
def test_names_and_links(name: str) -> None:
    for recipe in re.findall(r"`((?:bf16|fp16|fp8)-[a-z]+|tf32|fp32)`", PAGES[name]):
        assert recipe in RECIPES
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[name]):
        assert (DOCS / target).exists(), target


def test_every_block_runs_after_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "torch": torch,
        "make_model": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)),
        "criterion": lambda output, target: nn.functional.mse_loss(output.float(), target),
        "loader": [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(8)],
    }
    for number, block in enumerate(blocks(PAGES["pytorch.md"])):
        if "make_model" in block and "precision" in names:
            names["precision"].close()  # the next model is another
        exec(compile(block, f"docs/pytorch.md, block {number}", "exec"), names)
    assert names["info"].stepped
    assert names["average"].updates == 8
    assert next(names["model"].parameters()).dtype is torch.bfloat16
    assert names["policy"].param_dtype is torch.bfloat16


def test_every_block_on_rehearsal_runs_after_those_before_it() -> None:
    torch.manual_seed(0)
    names: dict[str, Any] = {
        "torch": torch,
        "make_model": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)),
        "criterion": nn.functional.mse_loss,
        "batches": [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(4)],
    }
    for number, block in enumerate(blocks(PAGES["rehearsal.md"])):
        exec(compile(block, f"docs/rehearsal.md, block {number}", "exec"), names)
    assert (names["verdict"].status, names["plan"].recipe) == ("accept", "fp16-mixed")
