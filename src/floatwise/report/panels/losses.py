# SPDX-License-Identifier: Apache-2.0
"""The losses of float32, rehearsals and real runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from floatwise.language import Text
from floatwise.planner.decision import Decision
from floatwise.probe.recording import Recording
from floatwise.report import numbers
from floatwise.report.drawing import Drawing, Key
from floatwise.report.figures import losses_figure
from floatwise.report.figures.losses import DASHES
from floatwise.report.figures.style import FLOAT32
from floatwise.report.losses import LossCurves, loss_curves
from floatwise.report.panels.panel import Panel, recipe_colours
from floatwise.report.tables import NumbersTable, evenly

__all__ = ["loss_panel"]

# Steps in the table: more are not read (convention).
_MOST_STEPS = 40
_MARKS = {"solid": "line", "dash": "dashes", "dot": "dots"}

_SAYS = Text("Loss by step of {names}.", "各步损失：{names}。")
_COMMA = Text(", ", "、")
_SPREAD_KEY = Text("float32's own spread", "float32 自身的波动")
_ALLOWED_KEY = Text("what the mean of the last steps may be off", "最后若干步均值允许的差距")
_BROKEN_KEY = Text("loss not finite", "损失非有限值")
_TITLE = Text("Losses", "损失数值")
_STEP = Text("step", "步")
_SPREAD = Text("float32's spread", "float32 的波动")


def loss_panel(decisions: Sequence[Decision], recording: Recording) -> Panel | None:
    """Returns the panel; None where no loss was seen."""
    curves = loss_curves(decisions, recording)
    if curves is None:
        return None
    colours = recipe_colours(decisions)
    names = str(_COMMA).join(["float32", *(curve.name for curve in curves.curves)])
    figure = losses_figure(curves, colours)
    drawing = Drawing("losses", figure, _SAYS.format(names=names), _keys(curves, colours))
    return Panel("", drawing, "", (_table(curves),))


def _keys(curves: LossCurves, colours: Mapping[str, str]) -> tuple[Key, ...]:
    keys = [Key("float32", FLOAT32, "thick")]
    keys += [Key(curve.name, colours[curve.recipe], _MARKS[DASHES[curve.kind]]) for curve in curves.curves]
    if any(spread > 0 for spread in curves.spread):
        keys.append(Key(str(_SPREAD_KEY), "var(--band)"))
    if any(curve.allowed for curve in curves.curves):
        keys.append(Key(str(_ALLOWED_KEY), "var(--allowed)"))
    runs = (curves.float32, *(curve.losses for curve in curves.curves))
    if not all(math.isfinite(loss) for run in runs for loss in run):
        keys.append(Key(str(_BROKEN_KEY), "var(--ink)", "cross"))
    return tuple(keys)


def _table(curves: LossCurves) -> NumbersTable:
    headers = [str(_STEP), "float32", *(curve.name for curve in curves.curves)]
    runs = [curves.float32, *(curve.losses for curve in curves.curves)]
    if curves.spread:
        headers, runs = [*headers, str(_SPREAD)], [*runs, curves.spread]
    steps = evenly(range(max(map(len, runs))), _MOST_STEPS)
    rows = [(str(at + 1), *(numbers.quantity(run[at]) if at < len(run) else "" for run in runs)) for at in steps]
    return NumbersTable(str(_TITLE), tuple(headers), tuple(rows))
