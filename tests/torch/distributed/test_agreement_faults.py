# SPDX-License-Identifier: Apache-2.0
"""Faults of torch's own scalers across ranks, each beside what ours does: an infinity on rank 0, in the second step."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pytest
from tests.torch.distributed.agreement_workers import FAULTS, Case, Ran
from tests.torch.distributed.processes import on_ranks

Ranks: TypeAlias = list[Ran]


class Did(NamedTuple):
    """What the two ranks did in the second step, and their scales after it."""

    stepped: list[bool]
    scales: list[float]


AGREED = Did([False, False], [4.0, 4.0])
APART = Did([False, True], [4.0, 8.0])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Ranks]:
    folder = tmp_path_factory.mktemp("faults")
    by_rank: list[dict[Case, Ran]] = on_ranks(2, "tests.torch.distributed.agreement_workers", "faults", folder)
    return {case: [ran[case] for ran in by_rank] for case in by_rank[0]}


def second_step(ranks: Ranks) -> Did:
    assert [ran.error for ran in ranks] == ["", ""]
    return Did([ran.weights[1] != ran.weights[2] for ran in ranks], [ran.scales[1] for ran in ranks])


@pytest.mark.parametrize("fault", FAULTS)
def test_ours_agree(results: dict[Case, Ranks], fault: str) -> None:
    ranks = results[FAULTS[fault]]
    assert second_step(ranks) == AGREED
    assert [ran.scales for ran in ranks] == [[8.0, 4.0, 4.0]] * 2
    assert [ran.steps for ran in ranks] == [["stepped", "skipped", "stepped"]] * 2
    assert [ran.skipped for ran in ranks] == [1, 1]


class TestFault3ShardedGradScaler:
    """It reduces found_inf in `unscale_` alone."""

    def test_stock_parts_the_ranks_when_a_fused_optimizer_steps(self, results: dict[Case, Ranks]) -> None:
        ranks = results[FAULTS["fused without unscale_"]._replace(scaler="ShardedGradScaler")]
        assert second_step(ranks) == APART
        assert ranks[0].scales[2] != ranks[1].scales[2], "and they stay apart"

    def test_stock_fails_when_a_fused_optimizer_steps_after_unscale_(self, results: dict[Case, Ranks]) -> None:
        for ran in results[FAULTS["fused after unscale_"]._replace(scaler="ShardedGradScaler")]:
            assert ran.error.startswith("RuntimeError: output with shape [] doesn't match the broadcast shape [1]")
            assert ran.scales == [], "in the first step already, which was healthy"


class TestFault4GradScalerOnDTensors:
    """It reduces found_inf over the mesh and the placements of the first gradient alone."""

    def test_stock_parts_the_ranks_when_the_first_gradient_is_replicated(self, results: dict[Case, Ranks]) -> None:
        assert second_step(results[FAULTS["replicated before sharded"]._replace(scaler="GradScaler")]) == APART
        assert second_step(results[FAULTS["sharded before replicated"]._replace(scaler="GradScaler")]) == AGREED

    def test_stock_fails_on_plain_tensors_beside_dtensors(self, results: dict[Case, Ranks]) -> None:
        for ran in results[FAULTS["plain beside sharded"]._replace(scaler="GradScaler")]:
            assert "got mixed torch.Tensor and DTensor" in ran.error
