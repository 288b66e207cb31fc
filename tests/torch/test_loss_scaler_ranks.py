# SPDX-License-Identifier: Apache-2.0
"""Ranks that see different gradients and losses move their scales alike, as one process that sees all would."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torch.distributed.processes import on_ranks
from tests.torch.loss_scaler_workers import CASES, as_one_rank_sees_it, plain, scales


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, "tests.torch.loss_scaler_workers", "answers", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_scales_are_those_of_one_process(ranks: list[dict[str, Any]], kind: str, case: str) -> None:
    settings, steps = CASES[case]
    expected = scales(settings, as_one_rank_sees_it(steps), plain, rank=0)
    if (kind, case) != ("sharded", "a rank without gradients"):
        assert [rank["scales"][kind, case] for rank in ranks] == [expected] * 2


def test_the_cases_show_what_they_are_about(ranks: list[dict[str, Any]]) -> None:
    seen = ranks[0]["scales"]
    assert seen["plain", "one rank's gradient is too large to grow"] == [8.0, 8.0, 16.0]  # the peak has halved twice
    assert seen["plain", "overflow on one"][4:] == [8.0] * 9  # remembered for four intervals
    assert seen["plain", "a bad loss on one"][4:] == [8.0] * 4 + [16.0] * 4 + [32.0]


def test_all_ranks_raise_and_each_names_its_own(ranks: list[dict[str, Any]]) -> None:
    assert [rank["alarm"] for rank in ranks] == [
        [2, [], True],
        [2, ["second (shape [2], 1 infinite of 2 values)"], False],
    ]
