# SPDX-License-Identifier: Apache-2.0
"""Islands brought together by what is said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatwise.planner.decision import Island
from floatwise.report.plain import plain

__all__ = ["IslandGroup", "island_groups", "module_name"]


def module_name(path: str) -> str:
    """Returns a module's path as plans write it; the whole model has a name, too."""
    return path or "(root)"


@dataclass(frozen=True)
class IslandGroup:
    """Modules that stay in float32 for the same kind of reason.

    Attributes:
      modules: Their paths, in the plan's order.
      sentence: The reason of the first.
      same_for_all: False when the others' sentences differ, in their numbers.
    """

    modules: tuple[str, ...]
    sentence: str
    same_for_all: bool


def island_groups(islands: Sequence[Island]) -> list[IslandGroup]:
    """Returns one group per kind of reason, in order of first appearance."""
    by_code: dict[str, list[Island]] = {}
    for island in islands:
        by_code.setdefault(island.reason.code, []).append(island)
    return [_group(members) for members in by_code.values()]


def _group(members: list[Island]) -> IslandGroup:
    said = [plain(island.reason) for island in members]
    modules = tuple(module_name(island.module) for island in members)
    return IslandGroup(modules, said[0], len(set(said)) == 1)
