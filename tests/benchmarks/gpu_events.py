# SPDX-License-Identifier: Apache-2.0
"""Runs parts of `benchmarks/gpu` here and sorts what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from benchmarks.gpu.part import Part

__all__ = ["Found"]


class Found:
    """What a part gave.

    Args:
      run: The part, or a piece of one.
      device: As in `Part`.
    """

    def __init__(self, run: Callable[[Part], object], device: Literal["cuda", "cpu"] = "cpu") -> None:
        self.events: list[dict[str, Any]] = []
        run(Part(device, "tiny", 600.0, self.events.append))

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [event["value"] for event in self.events if event["event"] == kind]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self._of("row")

    @property
    def checks(self) -> list[dict[str, Any]]:
        return self._of("check")

    @property
    def left_out(self) -> list[str]:
        return [value["what"] for value in self._of("left_out")]

    @property
    def disagreements(self) -> dict[str, str]:
        return {check["what"]: check["detail"] for check in self.checks if not check["passed"]}
