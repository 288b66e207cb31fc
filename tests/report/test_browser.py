# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: every figure is drawn, nothing complains, and nothing is wider than the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, Tab, chromium
from tests.report.samples import predicted, recording, rehearsal, rehearsal_with_island

from floatwise.planner.decision import Decision, LossScaleChoice, Verdict
from floatwise.report import write_report

Decide = Callable[..., Decision]

_PROGRAM = chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_PROGRAM is None, reason="no Chromium on this machine"),
]

_SCALE = LossScaleChoice((6, 23), 8192.0, "lm_head")
_WIDTHS = (390, 1280)
_HOSTILE = "<img src=x onerror=alert(1)><a href='javascript:alert(2)'>%{x}</a>&lt;</script>"

# Every tab is opened in turn; a figure is drawn when its tab is shown.
_OPEN_ALL = """(async () => {
  const settled = () => new Promise((done) => setTimeout(done, 0));
  for (const tab of document.querySelectorAll("[role=tab]")) { tab.click(); await settled(); }
})()"""
_NOT_DRAWN = """[...document.querySelectorAll("[data-drawing]")].filter((place) =>
  !place.hasAttribute("data-drawn") || !place.querySelector("svg.main-svg")).map((place) => place.dataset.drawing)"""
_TOO_WIDE = """[...document.querySelectorAll("main, main *")].filter((element) =>
  !element.closest(".scroll, pre, svg") && element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => element.outerHTML.slice(0, 120))"""
# Text that sticks out of its figure is cut off by the figure's frame.
_CUT_OFF = """[...document.querySelectorAll(".drawing")].filter((place) => place.offsetParent).flatMap((place) => {
  const frame = place.getBoundingClientRect();
  return [...place.querySelectorAll("svg text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2);
  }).map((text) => `${place.dataset.drawing}: ${text.textContent}`);
})"""
# Words of one axis that lie on one another cannot be read.
_OVERLAPPING = """[...document.querySelectorAll(".drawing")].filter((place) => place.offsetParent).flatMap((place) =>
  [...place.querySelectorAll(".xaxislayer-above, .yaxislayer-above")].flatMap((layer) => {
    const texts = [...layer.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    return texts.flatMap(([text, a], index) => texts.slice(index + 1)
      .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
      .map(([other]) => `${place.dataset.drawing}: ${text.textContent} over ${other.textContent}`));
  }))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts one browser for all tests of this file."""
    assert _PROGRAM is not None
    with Browser(_PROGRAM) as started:
        yield started


@pytest.fixture
def page(decide: Decide, tmp_path: Path) -> Path:
    """Writes a page with every kind of figure, and names that try to be more than text."""
    verdicts = (
        Verdict("bf16-mixed", "chosen", (), rehearsal=rehearsal("bf16-mixed"), predicted=predicted()),
        Verdict("fp16-mixed", "accepted", (), (), _SCALE, rehearsal_with_island(), predicted()),
    )
    path = tmp_path / "page.html"
    values = recording(["embedding", *(f"layers.{index}.attention" for index in range(12)), _HOSTILE])
    write_report([decide(verdicts=verdicts)], values, path, [Path("a.toml")], Path("a.recording"))
    return path


def _open(browser: Browser, page: Path, width: int, scheme: str = "light") -> Tab:
    tab = browser.open(page, width, prefers_color_scheme=scheme)
    tab.evaluate(_OPEN_ALL)
    return tab


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("width", _WIDTHS)
def test_every_figure_is_drawn_and_fits(browser: Browser, page: Path, width: int) -> None:
    tab = _open(browser, page, width)
    assert tab.evaluate('document.querySelectorAll("[data-drawing]").length') == 12
    assert tab.evaluate(_NOT_DRAWN) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for question in (_TOO_WIDE, _CUT_OFF, _OVERLAPPING):
        assert tab.evaluate(question) == []
    assert tab.complaints() == []
    tab.close()


@pytest.mark.usefixtures("language")
def test_several_targets_fit_a_phone(browser: Browser, decide: Decide, tmp_path: Path) -> None:
    verdict = Verdict("fp16-mixed", "chosen", (), (), _SCALE, rehearsal(), predicted())
    decisions = [
        decide(target_name=f"NVIDIA {name}", here=False, measured=None, recipe="fp16-mixed", verdicts=(verdict,))
        for name in ("T4", "RTX 6000 Ada Generation", "H100")
    ]
    path = tmp_path / "page.html"
    paths = [Path(f"precision-{index}.toml") for index in range(3)]
    write_report(decisions, recording(), path, paths, Path("a.recording"))
    tab = _open(browser, path, 390)
    assert tab.evaluate(_NOT_DRAWN) == []
    assert tab.evaluate(_TOO_WIDE) == []
    assert tab.evaluate(_OVERLAPPING) == []
    assert tab.complaints() == []
    tab.close()


def test_foreign_names_stay_text(browser: Browser, page: Path) -> None:
    tab = _open(browser, page, 1280)
    assert tab.evaluate('document.querySelectorAll("a, img, [onerror]").length') == 0
    assert tab.evaluate('document.querySelectorAll("script").length') == 3
    tab.close()


def test_a_script_that_slipped_in_would_not_run(browser: Browser, page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    page.write_text(source.replace("<h1>", "<script>document.title = 'broken in'</script><h1>"), encoding="utf-8")
    tab = browser.open(page, 1280)
    assert tab.evaluate("document.title") != "broken in"
    assert any("Content Security Policy" in complaint for complaint in tab.complaints())
    tab.close()


def test_colours_follow_light_and_dark(browser: Browser, page: Path) -> None:
    tab = _open(browser, page, 1280)
    ink = 'getComputedStyle(document.querySelector("[data-drawing=memory] .textpoint text")).fill'
    light = tab.evaluate(ink)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    tab.call("Emulation.setEmulatedMedia", features=dark)
    tab.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert tab.evaluate(ink) != light
    assert tab.complaints() == []
    tab.close()


def test_figures_follow_the_width(browser: Browser, page: Path) -> None:
    tab = _open(browser, page, 1280)
    tab.resize(390)
    tab.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate(_TOO_WIDE) == []
    assert tab.evaluate(_CUT_OFF) == []
    assert tab.complaints() == []
    tab.close()


def test_keys_move_between_tabs(browser: Browser, page: Path) -> None:
    tab = browser.open(page, 1280)
    press = """(() => { const first = document.querySelector("#exponents-tab-1"); first.focus();
      first.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", bubbles: true}));
      return document.activeElement.id; })()"""
    assert tab.evaluate(press) == "exponents-tab-6"
    assert tab.evaluate('document.querySelector("#exponents-panel-6").offsetParent !== null')
    assert tab.evaluate('document.querySelector("#exponents-panel-1").offsetParent === null')
    tab.close()


def test_it_can_be_printed(browser: Browser, page: Path) -> None:
    tab = browser.open(page, 1280, prefers_color_scheme="dark")
    assert tab.pdf().startswith(b"%PDF")
    assert tab.evaluate(_NOT_DRAWN) == []  # the figures of all tabs are drawn on paper
    assert not tab.evaluate('document.documentElement.classList.contains("printed")')
    assert tab.complaints() == []
    tab.close()


def test_without_scripts_all_numbers_are_there(browser: Browser, page: Path) -> None:
    tab = browser.open(page, 390)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.load(page)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert tab.evaluate('document.querySelectorAll("[data-drawn]").length') == 0
    assert tab.evaluate('[...document.querySelectorAll(".away")].length') == 0
    assert tab.evaluate('document.querySelector("noscript").offsetParent !== null')
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.close()
