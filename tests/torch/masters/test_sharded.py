# SPDX-License-Identifier: Apache-2.0
"""Two processes: master weights of FSDP2's shards and under DDP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torch.distributed.processes import on_ranks
from tests.torch.masters.sharded_workers import OPTIMIZERS

MODES = ["split", "float32", "kahan", "stochastic"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_ranks(2, "tests.torch.masters.sharded_workers", "two", tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("mode", ["split", "float32"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sharded_training_is_that_of_float32(ranks: list[Any], name: str, mode: str) -> None:
    for rank in ranks:
        assert rank["equal"][name, mode] == dict.fromkeys(("weights", "states", "sharded", "bfloat16"), True)


@pytest.mark.parametrize("mode", MODES)
def test_a_distributed_checkpoint_is_float32_and_resumes_exactly(ranks: list[Any], mode: str) -> None:
    for rank in ranks:
        assert rank["resumed"][mode] == dict.fromkeys(("resumed", "float32 shards", "float32 model"), True)


def test_replicas_are_rounded_alike_and_shards_are_not(ranks: list[Any]) -> None:
    first, second = (rank["chance"] for rank in ranks)
    assert first["replica"] == second["replica"]
    alike = sum(a == b for a, b in zip(first["shard"], second["shard"], strict=True))
    assert 0.3 < alike / 256 < 0.7
    assert set(first["shard"]) == {1.0, 1.0 + 2.0**-7}


def test_ddp_goes_on_summing_gradients_also_while_weights_are_averaged(ranks: list[Any]) -> None:
    first, second = (rank["ddp"] for rank in ranks)
    assert first["weights"] == second["weights"]
    assert first["averaged"]
    assert second["averaged"]


def test_where_the_model_is_needed_it_is_asked_for(ranks: list[Any]) -> None:
    for rank in ranks:
        assert "give model=..., so that DDP hears of the new format" in rank["ddp"]["refused"]
        assert "got sharded parameters and no model" in rank["without model"]
