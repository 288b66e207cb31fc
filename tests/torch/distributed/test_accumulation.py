# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of distributed models are reduced once; clipping and averages see whole weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.torch.distributed.accumulation_workers import MANY, PARTS, WRAPPED
from tests.torch.distributed.processes import on_ranks
from tests.torch.loop_parts import AUTOCAST, model, same

NAMES = (*AUTOCAST, "bf16-master")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks bring back, from one start of two processes."""
    folder = tmp_path_factory.mktemp("accumulation")
    return on_ranks(2, "tests.torch.distributed.accumulation_workers", "run", folder)


class TestTraining:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("wrapped", WRAPPED)
    def test_ranks_agree_and_reducing_once_is_reducing_each_time(
        self, wrapped: str, name: str, ranks: list[dict[str, Any]]
    ) -> None:
        first, second = (rank["training"][wrapped, name] for rank in ranks)
        assert all(info.stepped for info in first["infos"])
        assert first["infos"] == second["infos"]
        assert same(first["reduced once"], second["reduced once"])
        # Sums in another order, and an optimizer that divides by their size.
        tolerance = 1e-4 if name == "fp32" else 2e-2
        for a, b in zip(first["reduced once"], first["reduced each time"], strict=True):
            torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance)

    @pytest.mark.parametrize("name", AUTOCAST)
    def test_ddp_is_a_hand_written_loop_bit_for_bit(self, name: str, ranks: list[dict[str, Any]]) -> None:
        for rank in ranks:
            trained = rank["training"]["DDP", name]
            assert same(trained["reduced once"], trained["by hand"])

    @pytest.mark.parametrize("name", NAMES)
    def test_only_the_last_gradient_is_reduced(self, name: str, ranks: list[dict[str, Any]]) -> None:
        first, second = (rank["training"]["DDP", name]["gradients"] for rank in ranks)
        assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [False] * (PARTS - 1) + [True]
        for rank in ranks:
            sharded = rank["training"]["FSDP2", name]["gradients"]
            assert [gradient is None for gradient in sharded] == [True] * (PARTS - 1) + [False]


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="gradients have the format of their weight")
def test_gradients_of_16_bit_weights_add_up_in_float32(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        expected = 1.5 * MANY
        assert rank["many"]["reduced each time"] == [[expected, expected]]
        # Rounded to bfloat16 before the last is added, to steps of 8 at most. Sums in bfloat16 stop at 256 and 512.
        for way in ("accumulate", "no_sync"):
            assert rank["many"][way][0] == pytest.approx([expected, expected], abs=8)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_an_overflow_in_one_micro_batch_of_one_rank_is_skipped_by_all(
    wrapped: str, ranks: list[dict[str, Any]]
) -> None:
    first, second = (rank["overflow"][wrapped] for rank in ranks)
    assert first[:3] == second[:3]
    skipped, kept, infos, after = first
    assert (skipped.skipped, skipped.loss_scale, kept) == (True, 32768.0, True)
    assert [info.stepped for info in infos] == [True]
    assert same(after, second[3])
    assert all(weight.isfinite().all() for weight in after)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_the_norm_is_that_of_whole_gradients(order: float, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        sharded_norm, norm, sharded, gradients = rank["norms"][order]
        assert sharded_norm == pytest.approx(norm, rel=1e-6)
        for a, b in zip(sharded, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=0.0)
    assert ranks[0]["norms"][order][0] == ranks[1]["norms"][order][0]


@pytest.mark.parametrize("name", ["fp32", "bf16-master"])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_an_average_of_shards_is_that_of_the_whole(wrapped: str, name: str, ranks: list[dict[str, Any]]) -> None:
    start = [p.detach() for p in model().parameters()]
    for rank in ranks:
        names, averages, within, restored = rank["averages"][wrapped, name]
        assert names == list(model().state_dict())
        assert restored
        assert {a.dtype for a in averages} == {torch.float32}
        for average, applied, before in zip(averages, within, start, strict=True):
            assert not torch.equal(average, before)
            torch.testing.assert_close(applied.float(), average, rtol=2.0**-8, atol=0.0)
    assert same(ranks[0]["averages"][wrapped, name][1], ranks[1]["averages"][wrapped, name][1])


def test_fsdp1_clips_by_its_own_means(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        message, norm, expected, stepped = rank["FSDP1"]
        assert "then model.clip_grad_norm_(...), and precision.step() without clip_norm" in message
        assert norm == pytest.approx(expected, rel=1e-6)
        assert stepped


def test_an_infinity_on_one_rank_is_skipped_by_all_without_a_loss_scale_too(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        info, kept = rank["without a scale"]
        assert (info.stepped, info.skipped, kept) == (False, True, True)
