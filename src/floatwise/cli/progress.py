# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr, quiet when nobody watches."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from floatwise.language import Text

__all__ = ["StepProgress"]

_WHAT = {
    "record": Text("recording float32 steps", "记录 float32 训练步"),
    "measure": Text("float32 and the plan in turn", "float32 与计划交替训练"),
    "seed 1": Text("float32, another seed", "float32，更换随机种子"),
    "seed 2": Text("float32, a third seed", "float32，第三个随机种子"),
}
#: One bar for all runs of a recipe: it begins again with each.
_REHEARSE = Text("rehearsing {recipe}", "预演 {recipe}")


class StepProgress:
    """One bar per phase; call it as `planner.record.Progress`."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StepProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` iterations of a phase are over."""
        if what not in self._tasks:
            word, _, recipe = what.partition(" ")
            text = _REHEARSE.format(recipe=recipe) if word == "rehearse" else str(_WHAT[what])
            self._tasks[what] = self._bars.add_task(text, total=total)
        self._bars.update(self._tasks[what], completed=done)
