# SPDX-License-Identifier: Apache-2.0
"""The page's panels: a figure, what it shows in words, its legend and its numbers, one file for each kind."""

from __future__ import annotations

from floatwise.report.panels.exponents import exponent_panels
from floatwise.report.panels.gradients import gradient_panels
from floatwise.report.panels.loss_scale import scale_panel
from floatwise.report.panels.losses import loss_panel
from floatwise.report.panels.memory import memory_panel
from floatwise.report.panels.panel import Panel
from floatwise.report.panels.speed import speed_panel

__all__ = [
    "Panel",
    "exponent_panels",
    "gradient_panels",
    "loss_panel",
    "memory_panel",
    "scale_panel",
    "speed_panel",
]
