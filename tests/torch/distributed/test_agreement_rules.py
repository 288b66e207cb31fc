# SPDX-License-Identifier: Apache-2.0
"""Who decides together, what it costs, and the rank that has nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torch.distributed.processes import on_ranks

STEPPED, SKIPPED = "stepped", "skipped"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rules")
    return on_ranks(2, "tests.torch.distributed.agreement_rules_workers", "answers", folder)


# What both ranks answer.
SAME: dict[str, Any] = {
    "largest": [0.0, 1.0, 1.0],
    "gradients on one rank, loop": [(STEPPED, 8.0), (SKIPPED, 4.0), (STEPPED, 4.0)],
    "gradients on one rank, fused": [(STEPPED, 8.0), (SKIPPED, 4.0), (STEPPED, 4.0)],
    "no gradients": ["AssertionError: No inf checks were recorded for this optimizer."],  # as on one process
    "two optimizers": {"told": [STEPPED, SKIPPED], "scale": 4.0, "skipped": 1},
    "unscaled before": [(SKIPPED, 4.0), (SKIPPED, 2.0)],
    "sum overflows": {"weight": [1.0, 1.0], "placements": ["Replicate"]},
    "sum is finite": {"weight": [0.0, 0.0], "placements": ["Replicate"]},
    "sum is finite, stock": {"weight": [0.0, 0.0], "placements": ["Partial"]},
    # Stock torch looks at the terms only, and writes the infinite sum into the weights.
    "sum overflows, stock": {"weight": [float("-inf")] * 2, "placements": ["Partial"]},
    "cost": {"reductions": 1, "numbers": [1]},
    "sparse": [(STEPPED, 8.0), (SKIPPED, 4.0), (SKIPPED, 2.0)],
}


@pytest.mark.parametrize("question", SAME)
def test_both_ranks_answer_alike(ranks: list[dict[str, Any]], question: str) -> None:
    assert [answer[question] for answer in ranks] == [SAME[question]] * 2


def test_a_group_of_one_rank_decides_alone_and_waits_for_nobody(ranks: list[dict[str, Any]]) -> None:
    assert [answer["alone"] for answer in ranks] == [[1.0], [0.0, 0.0, 0.0]]


def test_a_scaler_with_a_group_of_its_own(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["scalers alone"] == [(SKIPPED, 4.0)]
    assert ranks[1]["scalers alone"] == [(STEPPED, 8.0), (STEPPED, 8.0)]


def test_a_group_must_have_all_ranks_that_a_parameter_lives_on(ranks: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(ranks):
        (said,) = answer["not covered"]
        assert f"process_group of the ranks [{rank}], but parameters live on the ranks [{1 - rank}], too" in said


def test_a_group_must_have_this_rank(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["not a member"] == []
    assert ranks[1]["not a member"] == ["BadInputError: got a process_group without this rank, 1; give one that has it"]
