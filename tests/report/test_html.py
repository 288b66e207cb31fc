# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from tests.report.page import Page
from tests.report.samples import predicted, recording, rehearsal, rehearsal_with_island

from floatwise.errors import BadInputError
from floatwise.plan import recipe
from floatwise.planner.decision import Decision, Finding, Island, LossParity, LossScaleChoice, Verdict
from floatwise.planner.reasons import Reason
from floatwise.probe.recording import Recording
from floatwise.rehearse.evidence import Evidence
from floatwise.report.html import report_html, write_report

Decide = Callable[..., Decision]

pytestmark = pytest.mark.usefixtures("language")

_SCALE = LossScaleChoice((6, 23), 8192.0, "lm_head")
_PLAN, _RECORDING = Path("precision.toml"), Path("precision.recording")
#: A page is at most so large, whatever the model: it is mailed and archived.
_MOST_BYTES = 6_000_000


_PLOTLY = get_plotlyjs()


@pytest.fixture(autouse=True)
def _short_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a line in place of Plotly's 5 MB, which take longer to parse than everything else together."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* Plotly */")


def _source(decisions: list[Decision], values: Recording | None = None) -> str:
    paths = [Path(f"precision-{index}.toml") for index in range(len(decisions))] if len(decisions) > 1 else [_PLAN]
    return report_html(decisions, values or recording(), paths, _RECORDING)


@pytest.fixture
def page(decide: Decide) -> Callable[..., Page]:
    """Returns the page of a decision that was changed as asked, parsed."""

    def make(**changes: Any) -> Page:
        return Page(_source([decide(loss_scale=_SCALE, **changes)]))

    return make


@pytest.fixture
def rehearsed(decide: Decide) -> Callable[..., Decision]:
    """Returns the maker of decisions that were rehearsed and predicted, as well."""

    def make(**changes: Any) -> Decision:
        verdicts = (
            Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed"), predicted=predicted()),
            Verdict("fp16-mixed", "accepted", (), (), _SCALE, rehearsal_with_island(), predicted()),
        )
        return decide(**{"verdicts": verdicts, **changes})

    return make


def _figures(made: Page) -> list[str]:
    return made.attributes("data-drawing")


def test_page_is_whole(rehearsed: Decide, language: str) -> None:
    made = Page(_source([rehearsed()]))
    assert made.open == []
    assert made.attributes("lang") == [{"en": "en", "zh": "zh-Hans"}[language]]
    ids = made.attributes("id")
    assert len(ids) == len(set(ids))
    named = [*made.attributes("aria-labelledby"), *made.attributes("aria-controls")]
    assert {name for value in named for name in value.split()} <= set(ids)
    levels = [tag for tag, _ in made.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == "h1"
    assert levels.count("h1") == 1
    assert all("scope" in attrs for tag, attrs in made.tags if tag == "th")


def test_everything_is_on_it(page: Callable[..., Page], decide: Decide) -> None:
    text, decision = page().text, decide()
    said = [*decision.reasons, *(finding.reason for finding in decision.findings)]
    assert all(str(reason) in text for reason in said)
    assert all(island.module in text for island in decision.islands)
    assert all(verdict.recipe in text for verdict in decision.verdicts)
    assert all(row.worst_module in text for row in decision.evidence)
    for expected in ("2.3×", "0.62×", "84.1 ms", "10.2 GiB", "train.py:41", "floatwise run train.py --plan"):
        assert expected in text.replace("\u00a0", " ")
    assert 'compute_dtype = "bfloat16"' in text
    assert text.index("bf16-mixed") < text.index("2.3×") < text.index(str(decision.reasons[0]))


def test_parts_come_in_their_order(rehearsed: Decide) -> None:
    made = Page(_source([rehearsed(loss_scale=_SCALE)]))
    headings = [attrs["id"] for tag, attrs in made.tags if tag == "h2"]
    assert headings == [
        *("why", "proof", "losses", "exponents", "gradients", "islands", "memory", "speed", "scale"),
        *("findings", "verdicts", "evidence", "next"),
    ]


def test_every_figure_has_a_name_a_description_and_its_numbers(rehearsed: Decide) -> None:
    made = Page(_source([rehearsed()]))
    found = [attrs for _, attrs in made.tags if "data-drawing" in attrs]
    assert [attrs["data-drawing"] for attrs in found] == [
        "losses",
        *(f"exponents-{role}" for role in ("grad-output", "weight-grad", "output", "input", "weight", "update")),
        *("gradients-0", "gradients-1", "memory", "speed", "loss-scale"),
    ]
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in found)
    assert made.attributes("class").count("numbers") == 6 * 2 + 6
    assert all(f'"{name}"' in made.scripts[0] for name in _figures(made))


def test_without_scripts_nothing_is_hidden(rehearsed: Decide) -> None:
    made = Page(_source([rehearsed()]))
    assert ("noscript", {}) in made.tags
    hidden = [attrs for _, attrs in made.tags if "hidden" in attrs]
    assert {attrs["role"] for attrs in hidden} == {"tablist"}
    assert made.attributes("role").count("tabpanel") == 6 + 2


def test_rehearsals_and_what_was_tried_are_on_it(rehearsed: Decide, language: str) -> None:
    text = Page(_source([rehearsed()])).text.replace("\u00a0", " ")
    found = rehearsal_with_island()
    assert all(str(evidence) in text for evidence in (*found.reasons, *found.advice))
    assert str(found.tried[0].reason) in text
    assert {"en": "passes with islands", "zh": "保留孤岛后通过"}[language] in text
    assert "1.75 ±0.2" in text


def test_islands_have_their_share_of_the_flops(rehearsed: Decide) -> None:
    found = rehearsal_with_island()
    island = Island("layers.1", Reason("test_norm", {}))
    other = Island("lm_head", Reason("test_norm", {}))
    verdict = Verdict("fp16-mixed", "chosen", (), (island, other), rehearsal=found)
    decision = rehearsed(recipe="fp16-mixed", islands=(island, other), verdicts=(verdict,))
    text = Page(_source([decision])).text.replace("\u00a0", " ")
    assert "3.1 %" in text
    bare = rehearsed(islands=(other,))
    assert "3.1 %" not in Page(_source([bare])).text.replace("\u00a0", " ")


def test_several_targets_begin_with_their_table(rehearsed: Decide) -> None:
    decisions = [
        rehearsed(here=False, target=f"nvidia-{name}", target_name=f"NVIDIA {name.upper()}", measured=None)
        for name in ("t4", "a100", "h100")
    ]
    made = Page(_source(decisions))
    assert made.open == []
    headings = [attrs["id"] for tag, attrs in made.tags if tag == "h2"]
    assert headings[:2] == ["targets", "why"]
    text = made.text
    for index, decision in enumerate(decisions):
        assert text.count(decision.target_name) >= 3
        assert f"--plan precision-{index}.toml" in text
    assert len(_figures(made)) == 12
    assert _figures(made).count("losses") == 1


def test_nothing_is_loaded_from_elsewhere(rehearsed: Decide) -> None:
    source = _source([rehearsed()])
    made = Page(source)
    names = {name for _, attrs in made.tags for name in attrs}
    assert names.isdisjoint({"src", "href", "srcset", "data", "action", "background", "formaction"})
    assert {tag for tag, _ in made.tags}.isdisjoint({"link", "iframe", "object", "embed", "img", "base"})
    style = source[source.index("<style>") : source.index("</style>")]
    assert not re.search(r"https?:|url\(|@import", style)


def test_policy_admits_the_pages_own_scripts_and_no_address(rehearsed: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: _PLOTLY)
    made = Page(_source([rehearsed()]))
    [policy] = [attrs["content"] for _, attrs in made.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in made.scripts[1:]]
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": " ".join(digests),
    }
    assert len(digests) == 2


def test_page_stays_small_for_large_models(decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: _PLOTLY)
    paths = [f"encoder.layers.{layer}.sub_{kind * 7}.part" for layer in range(40) for kind in "abcdefghijkl"]
    verdicts = tuple(
        Verdict(name, "accepted", (), rehearsal=rehearsal(name)) for name in ("bf16-mixed", "fp16-mixed", "bf16-master")
    )
    source = _source([decide(verdicts=verdicts)], recording(paths))
    assert len(source.encode()) < _MOST_BYTES


_HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}\x00\x1b\udc80"


def test_foreign_strings_are_text(decide: Decide) -> None:
    reason, evidence = (
        Reason("test_hostile", {"text": _HOSTILE}),
        Evidence("largest_values", {"module": _HOSTILE, "amax": _HOSTILE}),
    )
    measured = decide().measured
    assert measured is not None
    found = rehearsal_with_island()
    hostile = replace(
        found,
        advice=(evidence,),
        reasons=(evidence,),
        islands=(replace(found.islands[0], module=_HOSTILE, reason=evidence),),
        tried=(replace(found.tried[0], module=_HOSTILE, reason=evidence),),
        last=replace(found.last, gradients=tuple(replace(row, parameter=_HOSTILE) for row in found.last.gradients)),
    )
    decision = decide(
        loss_scale=replace(_SCALE, largest=_HOSTILE),
        script=_HOSTILE,
        target=_HOSTILE,
        target_name=_HOSTILE,
        recipe=_HOSTILE,
        reasons=(reason,),
        islands=(Island(_HOSTILE, reason),),
        findings=(Finding("warning", _HOSTILE, reason),),
        verdicts=(Verdict(_HOSTILE, "refused", (reason,), (Island(_HOSTILE, reason),), None, hostile, predicted()),),
        evidence=tuple(replace(row, role=_HOSTILE, worst_module=_HOSTILE) for row in decide().evidence),
        measured=replace(measured, device=_HOSTILE, recipe=_HOSTILE),
    )
    for decisions in ([decision], [decision, decision]):
        made = Page(_source(decisions, recording([_HOSTILE, f"{_HOSTILE}.0"], script=_HOSTILE)))
        assert made.open == []
        tags = [tag for tag, _ in made.tags]
        assert "img" not in tags
        assert tags.count("script") == 3
        assert not any(name.startswith("on") for _, attrs in made.tags for name in attrs)
        assert made.text.count("<script>alert(1)</script>") > 8
        assert "{{ 7*7 }}\\x00\\x1b\\udc80" in made.text
        assert "<script>" not in made.scripts[0]
        assert "<img" not in made.scripts[0]
        assert "".join((made.text, *made.scripts)).encode()


def test_a_hostile_script_name_is_one_shell_word(decide: Decide) -> None:
    assert "run 'a b; rm -rf $HOME' --plan" in Page(_source([decide(script="a b; rm -rf $HOME")])).text


def test_commands_name_the_files_there_are(decide: Decide, tmp_path: Path) -> None:
    write_report([decide()], recording(), tmp_path / "a.html", [Path("b.toml")], Path("c.recording"))
    text = Page((tmp_path / "a.html").read_text(encoding="utf-8")).text
    assert "--plan b.toml" in text
    assert "--recording c.recording" in text


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({"measured": None, "evidence": ()}, 8),
        ({"here": False}, 8),
        ({"recipe": "fp32", "plan": recipe("fp32"), "measured": None, "islands": ()}, 8),
        ({"reasons": (), "verdicts": (), "findings": (), "islands": (), "evidence": ()}, 8),
    ],
)
def test_absent_parts_leave_no_trace(page: Callable[..., Page], changes: dict[str, Any], figures: int) -> None:
    made = page(**changes)
    assert made.open == []
    assert len(_figures(made)) == figures
    empty = [tag for (tag, _), (following, _) in zip(made.tags, made.tags[1:], strict=False) if tag == following]
    assert "section" not in empty


def test_a_page_without_figures_has_no_scripts(decide: Decide) -> None:
    made = Page(_source([decide(measured=None)], recording(summaries={}, losses=())))
    assert _figures(made) == []
    assert "script" not in {tag for tag, _ in made.tags}


def test_what_was_not_run_has_no_speed(page: Callable[..., Page]) -> None:
    text = page(here=False, target_name="NVIDIA T4").text
    assert "2.3×" not in text
    assert "NVIDIA T4" in text


def test_what_was_only_predicted_says_so(rehearsed: Decide, language: str) -> None:
    text = Page(_source([rehearsed(measured=None, here=False)])).text
    words = {
        "en": ("Speed, predicted", "Peak memory, predicted", "Rehearsal"),
        "zh": ("速度（预测）", "峰值内存（预测）", "预演"),
    }
    assert all(word in text for word in words[language])
    assert "2.5×" in text


def test_what_was_tried_is_shown_when_float32_won(page: Callable[..., Page]) -> None:
    made = page(recipe="fp32", plan=recipe("fp32"), islands=())
    assert "tile" not in made.attributes("class")
    assert "2.3×" in made.text
    assert "2.118" in made.text


def test_losses_that_are_not_finite(page: Callable[..., Page], decide: Decide) -> None:
    measured = decide().measured
    assert measured is not None
    nan = float("nan")
    broken = replace(
        measured,
        losses={"planned": (2.0, nan, 1.5), "float32": (nan, nan, nan)},
        loss_parity=LossParity(False, nan, (nan,), (nan, nan)),
    )
    made = page(measured=broken)
    assert "NaN" in made.text
    assert "NaN" not in made.scripts[0]
    assert "Infinity" not in made.scripts[0]


def test_file_is_written_whole_or_not_at_all(decide: Decide, tmp_path: Path) -> None:
    path = tmp_path / "precision.html"
    path.write_text("old")
    write_report([decide(script="\udc80.py")], recording(), path, [_PLAN], _RECORDING)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path) == ["precision.html"]


@pytest.mark.parametrize("place", ["missing/precision.html", "."])
def test_place_that_cannot_be_written(decide: Decide, tmp_path: Path, place: str) -> None:
    with pytest.raises(BadInputError, match=r"cannot write the report to .*; (make the directory|name a file)"):
        write_report([decide()], recording(), tmp_path / place, [_PLAN], _RECORDING)
    assert list(tmp_path.iterdir()) == []


def test_plotly_is_loaded_for_pages_only() -> None:
    code = "import floatwise.cli.app, floatwise.report, sys; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
