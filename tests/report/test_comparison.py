# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.report.samples import predicted, rehearsal, rehearsal_with_island

from floatwise.plan import recipe
from floatwise.planner.decision import Decision, LossScaleChoice, Verdict
from floatwise.planner.reasons import Reason
from floatwise.report import render_comparison
from floatwise.report.commands import next_commands
from floatwise.report.comparison import HEADERS, target_row
from floatwise.report.numbers import MISSING
from floatwise.report.terminal import WIDEST

Decide = Callable[..., Decision]

pytestmark = pytest.mark.usefixtures("language")

_SCALE = LossScaleChoice((6, 23), 8192.0, "lm_head")
_FAILED = Reason("rehearsal_failed", {"recipe": "bf16-mixed", "failure": "train.py:3: out of range"})
_RECORDING, _PAGE = Path("precision.recording"), Path("precision.html")


def _joined(text: str) -> str:
    return "".join(character for character in text if character.isprintable() and character not in " │╭╮╰╯─•")


@pytest.fixture
def targets(decide: Decide) -> list[Decision]:
    """Returns a T4 that needs islands and a loss scale, this machine, and a CPU that stays in float32."""
    refused = replace(predicted(), fits=False)
    t4 = Verdict("fp16-mixed", "chosen", (), rehearsal=rehearsal_with_island(), predicted=refused)
    here = Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed"), predicted=predicted())
    return [
        decide(
            target="nvidia-t4", target_name="NVIDIA T4", here=False, measured=None, recipe="fp16-mixed",
            plan=recipe("fp16-mixed"), loss_scale=_SCALE, verdicts=(t4,),
        ),
        decide(verdicts=(here,)),
        decide(
            target="cpu", target_name="CPU", here=False, measured=None, recipe="fp32", plan=recipe("fp32"),
            islands=(), verdicts=(Verdict("fp32", "chosen", ()),),
        ),
    ]  # fmt: skip


def _print(decisions: Sequence[Decision], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    paths = [Path(f"precision-{decision.target}.toml") for decision in decisions]
    render_comparison(decisions, console, paths, _PAGE, _RECORDING)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_for_each_target(targets: list[Decision], language: str) -> None:
    t4, here, cpu = map(target_row, targets)
    words = {
        "en": ("passes with islands", "passes", "does not fit", "fits"),
        "zh": ("保留孤岛后通过", "通过", "超出容量", "可容纳"),
    }
    assert (t4.rehearsal, here.rehearsal, t4.fits, here.fits) == words[language]
    assert (t4.loss_scale, here.loss_scale) == ("2^13", MISSING)
    assert (t4.islands, t4.mood, t4.too_large) == ("24", "good", True)
    assert t4.speed is not None
    assert here.speed is not None
    assert (t4.speed.value, here.speed.value) == ("2.5×", "2.3×")
    assert cpu.is_float32
    assert (cpu.speed, cpu.memory) == (None, None)
    assert {cpu.rehearsal, cpu.fits, cpu.islands, cpu.loss_scale} == {MISSING}
    assert len(HEADERS) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rehearsal": None}, {"en": "not rehearsed", "zh": "未预演"}),
        ({"rehearsal": rehearsal(status="refuse")}, {"en": "refused", "zh": "不通过"}),
        ({"reasons": (_FAILED,)}, {"en": "the script fails", "zh": "脚本出错"}),
    ],
)
def test_what_rehearsals_came_to(decide: Decide, changes: dict[str, Any], words: dict[str, str], language: str) -> None:
    verdict = replace(Verdict("bf16-mixed", "chosen", ()), **changes)
    assert target_row(decide(verdicts=(verdict,))).rehearsal == words[language]


def test_a_decision_without_verdicts_has_a_row(decide: Decide) -> None:
    row = target_row(decide(verdicts=(), measured=None))
    assert (row.speed, row.memory, row.fits) == (None, None, MISSING)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_everything_is_there_at_every_width(targets: list[Decision], width: int) -> None:
    text = _print(targets, width)
    assert max(cell_len(line) for line in text.splitlines()) <= min(width, WIDEST)
    joined = _joined(text)
    for decision in targets:
        assert _joined(decision.target_name) in joined
        assert decision.recipe in joined
        assert _joined(str(decision.reasons[0])) in joined
    for expected in ("2^13", "2.5×", "2.3×", "60.0MiB", "70%", "precision.html", "floatwiserun"):
        assert expected in joined


def test_reasons_are_told_in_short(decide: Decide) -> None:
    reasons = tuple(Reason("test_hostile", {"text": f"reason-{index}"}) for index in range(5))
    text = _print([decide(reasons=reasons), decide(reasons=reasons)], 80)
    assert text.count("reason-1") == 2
    assert "reason-2" not in text


def test_foreign_strings_are_printed_as_they_are(decide: Decide) -> None:
    hostile = "[bold red]x[/]\x1b[2J\n{0}\u202e"
    decision = decide(script=hostile, target_name=hostile, recipe=hostile)
    text = _print([decision, decision], 80)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[boldred]x[/]\\x1b[2J\\n{0}\\u202e" in _joined(text)


def test_each_plan_has_its_command(targets: list[Decision]) -> None:
    paths = [Path("a.toml"), Path("b.toml"), Path("c.toml")]
    lines = [command.line for command in next_commands(targets, paths, _RECORDING)]
    assert lines == [
        "floatwise run train.py --plan a.toml",
        "floatwise run train.py --plan b.toml",
        "floatwise plan --recording precision.recording --target nvidia-h100",
    ]


def test_no_other_target_is_suggested_when_all_were_asked(decide: Decide) -> None:
    decisions = [decide(target=name) for name in ("nvidia-t4", "nvidia-h100")]
    commands = next_commands(decisions, [Path("a.toml"), Path("b.toml")], _RECORDING)
    assert all("--target" not in command.line for command in commands)
