# SPDX-License-Identifier: Apache-2.0
"""The report's figures: each file makes one, from data to a Plotly figure that is drawn in the reader's browser.

Plotly is imported here and nowhere else, and this folder is imported only when a page is written. Colours are names of
the page's style sheet (`var(--ink)`), which the page's script fills in, so that a figure follows light and dark mode.
"""

from __future__ import annotations

from floatwise.report.figures.exponents import exponents_figure
from floatwise.report.figures.gradients import gradients_figure
from floatwise.report.figures.loss_scale import loss_scale_figure
from floatwise.report.figures.losses import losses_figure
from floatwise.report.figures.memory import memory_figure
from floatwise.report.figures.speed import speed_figure

__all__ = [
    "exponents_figure",
    "gradients_figure",
    "loss_scale_figure",
    "losses_figure",
    "memory_figure",
    "speed_figure",
]
