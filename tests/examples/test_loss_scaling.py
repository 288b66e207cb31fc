# SPDX-License-Identifier: Apache-2.0
"""The experiment of Micikevicius et al. 2018 in small: float16 fails without a loss scale only; its page says so."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("loss-scaling.md", "loss-scaling.zh-CN.md")]
STEPS, FINAL_STEPS = 40, 5


class Output(NamedTuple):
    """What a shortened experiment printed, and its plot data by column."""

    text: str
    losses: dict[str, list[float]]
    gradients: dict[str, list[str]]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("loss_scaling")
    command = [sys.executable, str(ROOT / "examples" / "loss_scaling.py"), "--steps", str(STEPS), "--output", "plots"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
    losses = {name: [float(x) for x in values] for name, values in columns(folder / "plots" / "losses.csv").items()}
    return Output(done.stdout, losses, columns(folder / "plots" / "gradients.csv"))


def columns(path: Path) -> dict[str, list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def final(losses: list[float]) -> float:
    return sum(losses[-FINAL_STEPS:]) / FINAL_STEPS


@pytest.mark.slow
def test_float16_diverges_without_a_loss_scale_and_all_else_trains_as_float32(output: Output) -> None:
    losses = output.losses
    seeds = [final(losses[name]) for name in ("float32", "float32_seed_1", "float32_seed_2")]
    spread = max(seeds) - min(seeds)
    for name in ("float16_scaled", "bfloat16"):
        assert abs(final(losses[name]) - seeds[0]) <= spread, name
    assert final(losses["float16"]) - seeds[0] > 10 * spread
    assert seeds[0] < losses["float32"][0] < final(losses["float16"])


@pytest.mark.slow
def test_what_it_prints(output: Output) -> None:
    scale, low, high = map(int, re.findall(r"2\^(\d+)", output.text)[:3])
    assert low < scale < high
    refused = [line for line in output.text.splitlines() if line.startswith(" " * 20)]
    assert any("vanish" in line for line in refused)
    assert output.text.index("float16 ") < output.text.index(refused[0]) < output.text.index("float16_scaled")
    assert f"{final(output.losses['float16']):.6f}" in output.text


@pytest.mark.slow
def test_loss_curves_have_a_row_for_each_step(output: Output) -> None:
    assert output.losses["step"] == list(range(STEPS))
    first = [values[0] for name, values in output.losses.items() if name != "step"]
    assert first == pytest.approx([first[0]] * 6, rel=2e-3)


@pytest.mark.slow
def test_gradient_exponents_are_those_of_figure_3(output: Output) -> None:
    exponents, text = output.gradients["exponent"], output.gradients["share"]
    shares = [float(x) for x in text]
    assert exponents[0] == "zero"
    assert [int(e) for e in exponents[1:]] == sorted(int(e) for e in exponents[1:])
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    rows = list(zip(shares, output.gradients["float16"], output.gradients["float16_scaled"], strict=True))[1:]
    vanished = sum(share for share, plain, _ in rows if plain == "zero") / sum(share for share, _, _ in rows)
    assert vanished > 0.9
    assert f"without it: {vanished:.1%}" in output.text
    assert "with it: 0.0%" in output.text
    assert {scaled for share, _, scaled in rows if share > 1e-3} == {"normal"}


def test_both_languages_have_the_same_commands_figures_and_columns() -> None:
    english, chinese = PAGES
    for pattern in (r"```bash\n(.*?)```", r"`([^`\n]+)`", r"\d[\d.,^]*\d"):
        found = [re.findall(pattern, page, re.DOTALL) for page in (english, chinese)]
        assert sorted(found[0]) == sorted(found[1]), pattern


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=["en", "zh"])
def test_the_page_names_every_column(page: str, output: Output) -> None:
    for column in (*output.losses, *output.gradients):
        assert f"`{column}`" in page
