# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from floatwise.planner.decision import Island
from floatwise.planner.reasons import Reason
from floatwise.report.islands import island_groups


def _overflow(module: str, amax: float) -> Island:
    return Island(module, Reason("test_overflow", {"module": module, "amax": amax, "format": "f", "limit": 1}))


def test_one_group_for_each_kind_of_reason() -> None:
    norm = Reason("test_norm", {})
    groups = island_groups([Island("a", norm), _overflow("b", 2.0), Island("c", norm), _overflow("d", 3.0)])
    assert [group.modules for group in groups] == [("a", "c"), ("b", "d")]
    assert [group.same_for_all for group in groups] == [True, False]
    assert [group.sentence for group in groups] == [str(norm), str(_overflow("b", 2.0).reason)]


def test_nothing_to_group() -> None:
    assert island_groups([]) == []
