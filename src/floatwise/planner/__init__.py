# SPDX-License-Identifier: Apache-2.0
"""From what a float32 run showed to a plan for a device, with the reason of every decision."""

from __future__ import annotations

from floatwise.planner.decide import decide, with_failure, with_measurement
from floatwise.planner.decision import Decision
from floatwise.planner.measure import measure
from floatwise.planner.record import record

__all__ = ["Decision", "decide", "measure", "record", "with_failure", "with_measurement"]
