# SPDX-License-Identifier: Apache-2.0
"""From what a float32 run showed to a plan for a device, with the reason of every decision."""

from __future__ import annotations

from floatwise.planner.decide import decide
from floatwise.planner.decision import Decision
from floatwise.planner.measure import measure
from floatwise.planner.measured import (
    with_failure,
    with_known_measurement,
    with_measured,
    with_measurement,
    without_measurement,
)
from floatwise.planner.record import record
from floatwise.planner.rehearsed import Rehearsed, read_rehearsed, with_rehearsed
from floatwise.planner.targets import Target, decide_all, rehearse_for

__all__ = [
    "Decision",
    "Rehearsed",
    "Target",
    "decide",
    "decide_all",
    "measure",
    "read_rehearsed",
    "record",
    "rehearse_for",
    "with_failure",
    "with_known_measurement",
    "with_measured",
    "with_measurement",
    "with_rehearsed",
    "without_measurement",
]
