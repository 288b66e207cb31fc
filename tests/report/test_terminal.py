# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.report.samples import predicted, rehearsal, rehearsal_with_island

from floatwise.plan import recipe
from floatwise.planner.decision import Decision, Finding, Island, LossScaleChoice, Verdict
from floatwise.planner.reasons import Reason
from floatwise.report.terminal import WIDEST, render_decision

Decide = Callable[..., Decision]
Printed = Callable[[], str]

pytestmark = pytest.mark.usefixtures("language")

_PLAN, _PAGE = Path("precision.toml"), Path("precision.html")
_SCALE = LossScaleChoice((6, 23), 8192.0, "lm_head")


def _joined(text: str) -> str:
    """Returns the text without spaces, line breaks and frames, so that wrapping does not matter."""
    return "".join(character for character in text if character.isprintable() and character not in " │╭╮╰╯─•")


def _assert_fits(text: str, console: Console) -> None:
    assert max(cell_len(line) for line in text.splitlines()) <= min(console.width, WIDEST)


def test_answer_comes_first_and_every_line_fits(decide: Decide, console: Console, printed: Printed) -> None:
    render_decision(decide(loss_scale=_SCALE), console, _PLAN, _PAGE)
    text = printed()
    _assert_fits(text, console)
    assert _joined(text).startswith("bf16-mixed")
    assert "2.3×" in text
    assert "0.62×" in text


def test_everything_is_there_at_every_width(decide: Decide, console: Console, printed: Printed) -> None:
    decision = decide(loss_scale=_SCALE)
    render_decision(decision, console, _PLAN, _PAGE)
    joined = _joined(printed())
    said = [*decision.reasons, *(finding.reason for finding in decision.findings)]
    assert all(_joined(str(reason)) in joined for reason in said)
    assert all(verdict.recipe in joined for verdict in decision.verdicts)
    assert all(row.format in joined for row in decision.evidence)
    assert "train.py:41" in joined
    assert "2^6" in joined
    assert "2^23" in joined
    assert "transformer.h.{0..11}.ln_{1,2}" in joined
    assert "floatwiseruntrain.py--planprecision.toml" in joined
    assert "floatwiseplan--recordingprecision.recording--targetnvidia-t4" in joined
    assert "precision.html" in joined


def test_each_island_is_listed_or_counted(decide: Decide, console: Console, printed: Printed) -> None:
    norm = Reason("test_norm", {})
    islands = tuple(Island(f"block_{chr(97 + i)}.norm", norm) for i in range(20))
    render_decision(decide(islands=islands[:8]), console, _PLAN, _PAGE)
    assert all(island.module in printed() for island in islands[:8])
    render_decision(decide(islands=islands), console, _PLAN, _PAGE)
    later = printed()[printed().rindex("block_h.norm") :]
    assert "12" in later.splitlines()[1]
    assert "precision.html" in later


def test_sentence_of_one_module_is_not_passed_off_as_all(decide: Decide, console: Console, printed: Printed) -> None:
    data = {"format": "float16", "limit": 65504}
    islands = tuple(
        Island(f"m.{i}", Reason("test_overflow", {**data, "module": f"m.{i}", "amax": 7e4 + i})) for i in (0, 1)
    )
    render_decision(decide(islands=islands, verdicts=()), console, _PLAN, _PAGE)
    joined = _joined(printed())
    assert "m.{0,1}" in joined
    assert "(saidofm.0;" in joined or "（针对m.0；" in joined


def test_reasons_of_islands_are_told_once(decide: Decide, console: Console, printed: Printed) -> None:
    norm = Reason("test_norm", {})
    data = {"format": "float16", "limit": 65504, "amax": 7e4}
    over = [Reason("test_overflow", {**data, "module": module}) for module in ("a.0", "a.1")]
    decision = decide(reasons=(norm,), islands=(Island("", norm),), findings=())
    verdict = Verdict("fp16-mixed", "accepted", tuple(over), (Island("a.0", over[0]), Island("a.1", over[1])))
    render_decision(replace(decision, verdicts=(verdict,)), console, _PLAN, _PAGE)
    joined = _joined(printed())
    assert joined.count(_joined(str(norm))) == 1
    assert _joined(str(over[0])) in joined
    assert _joined(str(over[1])) not in joined
    assert "(root)" in joined
    assert "a.{0,1}" in joined


def test_what_was_tried_is_shown_when_float32_won(decide: Decide, console: Console, printed: Printed) -> None:
    render_decision(decide(recipe="fp32", plan=recipe("fp32"), islands=()), console, _PLAN, _PAGE)
    text = printed()
    assert "2.3×" not in text.splitlines()[1]
    assert "2.3×" in text
    assert "2.118" in text


def test_nothing_run_on_the_target_is_said(decide: Decide, console: Console, printed: Printed) -> None:
    there = decide(here=False, target="nvidia-t4", target_name="NVIDIA T4")
    render_decision(there, console, _PLAN, _PAGE)
    joined = _joined(printed())
    assert "2.3×" not in joined
    assert "NothingwasrunonNVIDIAT4" in joined or "没有在NVIDIAT4上运行" in joined
    assert "--targetnvidia-h100" in joined
    _assert_fits(printed(), console)


def test_rehearsals_and_predictions_are_told(decide: Decide, console: Console, printed: Printed, language: str) -> None:
    verdicts = (
        Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed"), predicted=predicted()),
        Verdict("fp16-mixed", "accepted", (), rehearsal=rehearsal_with_island()),
    )
    render_decision(decide(verdicts=verdicts, measured=None, here=False), console, _PLAN, _PAGE)
    joined = _joined(printed())
    _assert_fits(printed(), console)
    words = {
        "en": ("passes", "islands", "PredictedforNVIDIAH200", "70%off", "atmost10%"),
        "zh": ("保留孤岛", "对NVIDIAH200的预测", "70%", "不超过10%"),
    }
    for expected in (*words[language], "1.75", "±0.2", "1/8", "2.5×", "60.0MiB", "0.86×"):
        assert expected in joined


def test_nothing_is_said_of_rehearsals_that_were_not_made(
    decide: Decide, console: Console, printed: Printed, language: str
) -> None:
    render_decision(decide(), console, _PLAN, _PAGE)
    assert {"en": "Rehearsed", "zh": "预演"}[language] not in printed()


def test_float32_has_nothing_to_prove(decide: Decide, console: Console, printed: Printed) -> None:
    decision = decide(recipe="fp32", plan=recipe("fp32"), measured=None, islands=(), evidence=(), findings=())
    render_decision(replace(decision, verdicts=()), console, _PLAN, _PAGE)
    joined = _joined(printed())
    assert joined.startswith("fp32")
    assert "floatwiserun" not in joined
    assert all(_joined(str(reason)) in joined for reason in decision.reasons)


_HOSTILE = "[bold red]x[/]\x1b[2J\n{0}\u202e"


def test_foreign_strings_are_printed_as_they_are(decide: Decide, console: Console, printed: Printed) -> None:
    reason = Reason("test_hostile", {"text": _HOSTILE})
    decision = decide(
        script=_HOSTILE,
        target_name=_HOSTILE,
        recipe=_HOSTILE,
        reasons=(reason,),
        islands=(Island(_HOSTILE, reason),),
        findings=(Finding("warning", _HOSTILE, reason),),
        verdicts=(Verdict(_HOSTILE, "refused", (reason,)),),
        loss_scale=replace(_SCALE, largest=_HOSTILE),
        evidence=tuple(replace(row, role=_HOSTILE, format=_HOSTILE) for row in decide().evidence),
    )
    render_decision(decision, console, Path(_HOSTILE), Path(_HOSTILE))
    text = printed()
    _assert_fits(text, console)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[boldred]x[/]\\x1b[2J\\n{0}\\u202e" in _joined(text)


def test_colour_only_where_the_console_has_it(decide: Decide) -> None:
    outputs = {}
    for system in (None, "truecolor"):
        console = Console(file=io.StringIO(), width=80, color_system=system, force_terminal=bool(system))
        render_decision(decide(), console, _PLAN, _PAGE)
        assert isinstance(console.file, io.StringIO)
        outputs[system] = console.file.getvalue()
    assert "\x1b[" not in str(outputs[None])
    assert "\x1b[" in str(outputs["truecolor"])
