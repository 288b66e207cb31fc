# SPDX-License-Identifier: Apache-2.0
"""The loss scales that lose nothing."""

from __future__ import annotations

from collections.abc import Sequence

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording
from floatwise.report import numbers, sentences
from floatwise.report.drawing import Drawing, Key
from floatwise.report.figures import loss_scale_figure
from floatwise.report.loss_scale import ScaleCurve, scale_curve, shown_scale
from floatwise.report.panels.panel import Panel
from floatwise.report.plain import paragraph, plain
from floatwise.report.tables import NumbersTable

__all__ = ["scale_panel"]

_OF = Text("Loss scale of {recipe}.", "{recipe} 的损失缩放。")
_CURVE_KEY = Text("gradients that float16 rounds to zero", "被 float16 舍入为零的梯度")
_WINDOW_KEY = Text("window: none overflows, almost none vanishes", "窗口：无上溢，几乎没有变为零")
_OVER_KEY = Text("overflow: the step is skipped", "上溢：跳过该步")
_TITLE = Text("Gradients that vanish, by loss scale", "各损失缩放下变为零的梯度")
_SCALE = Text("loss scale", "损失缩放")
_VANISH = Text("become zero", "变为零")


def scale_panel(decisions: Sequence[Decision], recording: Recording) -> Panel | None:
    """Returns the window of the first plan that scales its loss, or recipe that would; None where there is none."""
    shown = shown_scale(decisions, recording)
    curve = scale_curve(recording, shown) if shown is not None and shown.recipe else None
    if shown is None or curve is None:
        return None
    choice = shown.choice
    words = paragraph((_OF.format(recipe=plain(shown.recipe)), sentences.loss_scale_sentence(choice)))
    keys = (
        Key(str(_CURVE_KEY), "var(--lost)", "line"),
        Key(str(_WINDOW_KEY), "var(--window)"),
        Key(str(_OVER_KEY), "var(--over-soft)"),
    )
    drawing = Drawing("loss-scale", loss_scale_figure(curve, choice), words, keys)
    return Panel("", drawing, words, (_table(curve),))


def _table(curve: ScaleCurve) -> NumbersTable:
    rows = [(f"2^{at}", numbers.percent(share)) for at, share in zip(curve.scales_log2, curve.flushed, strict=True)]
    return NumbersTable(str(_TITLE), (str(_SCALE), str(_VANISH)), tuple(rows))
