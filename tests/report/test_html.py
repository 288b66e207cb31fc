# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from floatwise.errors import BadInputError
from floatwise.plan import recipe
from floatwise.planner.decision import Decision, Finding, Island, LossParity, LossScaleChoice, Verdict
from floatwise.planner.reasons import Reason
from floatwise.report.html import report_html, write_report

Decide = Callable[..., Decision]

pytestmark = pytest.mark.usefixtures("language")

_SCALE = LossScaleChoice((6, 23), 8192.0, "lm_head")
_VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})


class Page(HTMLParser):
    """What a browser would find: tags that match, headings, text, references."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text a reader sees."""
        return "".join(self.words)

    def attributes(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value for _, attrs in self.tags for key, value in attrs.items() if key == name and value]


@pytest.fixture
def page(decide: Decide) -> Callable[..., Page]:
    """Returns the page of a decision that was changed as asked, parsed."""

    def make(**changes: Any) -> Page:
        return Page(report_html(decide(loss_scale=_SCALE, **changes), Path("precision.toml")))

    return make


def test_page_is_whole(page: Callable[..., Page], language: str) -> None:
    made = page()
    assert made.open == []
    assert made.attributes("lang") == [{"en": "en", "zh": "zh-Hans"}[language]]
    ids = made.attributes("id")
    assert len(ids) == len(set(ids))
    named = [name for value in made.attributes("aria-labelledby") for name in value.split()]
    assert set(named) <= set(ids)
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
        assert expected in text
    assert 'compute_dtype = "bfloat16"' in text
    assert text.index("bf16-mixed") < text.index("2.3×") < text.index(str(decision.reasons[0]))


def test_charts(page: Callable[..., Page]) -> None:
    made = page()
    charts = [attrs for tag, attrs in made.tags if tag == "svg"]
    assert len(charts) == 5
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in charts)
    for unit in ("ms", "GiB"):
        assert unit in made.text


def test_nothing_is_loaded_from_elsewhere(decide: Decide) -> None:
    source = report_html(decide(loss_scale=_SCALE), Path("precision.toml"))
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script|<link", source)
    assert "default-src 'none'" in source


_HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}\x00\x1b\udc80"


def test_foreign_strings_are_text(decide: Decide, page: Callable[..., Page]) -> None:
    reason = Reason("test_hostile", {"text": _HOSTILE})
    measured = decide().measured
    assert measured is not None
    made = page(
        script=_HOSTILE,
        target=_HOSTILE,
        target_name=_HOSTILE,
        recipe=_HOSTILE,
        reasons=(reason,),
        islands=(Island(_HOSTILE, reason),),
        findings=(Finding("warning", _HOSTILE, reason),),
        verdicts=(Verdict(_HOSTILE, "refused", (reason,), (Island(_HOSTILE, reason),)),),
        evidence=tuple(replace(row, role=_HOSTILE, worst_module=_HOSTILE) for row in decide().evidence),
        measured=replace(measured, device=_HOSTILE),
    )
    assert made.open == []
    assert {tag for tag, _ in made.tags}.isdisjoint({"script", "img"})
    assert not any(name.startswith("on") for _, attrs in made.tags for name in attrs)
    assert made.text.count("<script>alert(1)</script>") > 8
    assert "{{ 7*7 }}\\x00\\x1b\\udc80" in made.text
    assert made.text.encode()


def test_a_hostile_script_name_is_one_shell_word(decide: Decide) -> None:
    source = report_html(decide(script="a b; rm -rf $HOME"), Path("precision.toml"))
    assert "run 'a b; rm -rf $HOME' --plan" in Page(source).text


def test_commands_name_the_files_there_are(decide: Decide, tmp_path: Path) -> None:
    write_report(decide(), tmp_path / "a.html", Path("b.toml"), Path("c.recording"))
    text = Page((tmp_path / "a.html").read_text(encoding="utf-8")).text
    assert "--plan b.toml" in text
    assert "--recording c.recording" in text
    assert "--recording b.recording" in Page(report_html(decide(), Path("b.toml"))).text


@pytest.mark.parametrize(
    ("changes", "charts"),
    [
        ({"measured": None, "evidence": ()}, 1),
        ({"here": False}, 3),
        ({"recipe": "fp32", "plan": recipe("fp32"), "measured": None, "islands": ()}, 2),
        ({"reasons": (), "verdicts": (), "findings": (), "islands": (), "evidence": ()}, 4),
    ],
)
def test_absent_parts_leave_no_trace(page: Callable[..., Page], changes: dict[str, Any], charts: int) -> None:
    made = page(**changes)
    assert made.open == []
    assert sum(tag == "svg" for tag, _ in made.tags) == charts
    empty = [tag for (tag, _), (following, _) in zip(made.tags, made.tags[1:], strict=False) if tag == following]
    assert "section" not in empty


def test_what_was_not_run_has_no_speed(page: Callable[..., Page]) -> None:
    text = page(here=False, target_name="NVIDIA T4").text
    assert "2.3×" not in text
    assert "NVIDIA T4" in text


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
    assert made.text.count("×") >= 4
    assert "nan" not in " ".join(made.attributes("points"))


def test_file_is_written_whole_or_not_at_all(decide: Decide, tmp_path: Path) -> None:
    path = tmp_path / "precision.html"
    path.write_text("old")
    write_report(decide(script="\udc80.py"), path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path) == ["precision.html"]


@pytest.mark.parametrize("place", ["missing/precision.html", "."])
def test_place_that_cannot_be_written(decide: Decide, tmp_path: Path, place: str) -> None:
    with pytest.raises(BadInputError, match=r"cannot write the report to .*; (make the directory|name a file)"):
        write_report(decide(), tmp_path / place)
    assert list(tmp_path.iterdir()) == []
