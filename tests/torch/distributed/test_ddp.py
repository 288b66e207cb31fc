# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.torch.distributed.ddp_workers import ELEMENTS, WRAPPINGS, gradient_of
from tests.torch.distributed.processes import on_ranks
from torch import Tensor

RANKS = 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank brings back, from one start of four processes."""
    return on_ranks(RANKS, "tests.torch.distributed.ddp_workers", "run", tmp_path_factory.mktemp("ddp"))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


class TestTraining:
    @pytest.mark.parametrize("plan", ["fp32", "bf16-mixed", "fp16-mixed"])
    def test_two_ranks_are_one_process_bit_for_bit(self, plan: str, ranks: list[dict[str, Any]]) -> None:
        alone, _ = ranks[0]["training"][plan]
        assert all(same(alone, rank["training"][plan][1]) for rank in ranks)

    def test_an_overflow_on_one_rank_is_skipped_on_all(self, ranks: list[dict[str, Any]]) -> None:
        infos = [rank["overflow"][0] for rank in ranks]
        assert infos[0] == infos[1] == infos[2] == infos[3]
        assert [info.skipped for info in infos[0]] == [False, True, False, False]
        assert same(ranks[0]["overflow"][1], ranks[1]["overflow"][1])


def mean_in(dtype: torch.dtype, terms: list[Tensor]) -> Tensor:
    """The mean of two gradients, rounded after the division and after the addition."""
    first, second = ((term / 2).to(dtype) for term in terms)
    return first + second


class TestSums:
    @pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
    def test_16_bit_gradients_are_summed_in_float32(self, stored: torch.dtype, ranks: list[dict[str, Any]]) -> None:
        terms = torch.stack([gradient_of(rank, stored).double() for rank in range(RANKS)])
        exact = terms.mean(0).to(stored)
        for rank in ranks:
            planned, stock = rank["sums"][RANKS, str(stored).removeprefix("torch."), "float32"]
            assert torch.equal(planned, exact)
            assert not torch.equal(stock, exact)  # it rounds after every addition

    @pytest.mark.parametrize("summed", [torch.bfloat16, torch.float16])
    def test_float32_gradients_are_summed_in_16_bits(self, summed: torch.dtype, ranks: list[dict[str, Any]]) -> None:
        expected = mean_in(summed, [gradient_of(rank, torch.float32) for rank in range(2)])
        for rank in ranks:
            planned, stock = rank["sums"][2, "float32", str(summed).removeprefix("torch.")]
            assert planned.dtype is torch.float32
            assert torch.equal(planned, expected.float())
            assert not torch.equal(planned, stock)

    @pytest.mark.parametrize("count", [2, RANKS])
    def test_float32_sums_of_float32_gradients_are_ddps_own(self, count: int, ranks: list[dict[str, Any]]) -> None:
        for rank in ranks:
            planned, stock = rank["sums"][count, "float32", "float32"]
            assert planned.shape == (ELEMENTS,)
            assert torch.equal(planned, stock)

    def test_sparse_gradients_are_summed_too(self, ranks: list[dict[str, Any]]) -> None:
        assert all(rank["sparse"].tolist() == [0.5, 0.5, 1.0, 0.0] for rank in ranks)


class TestHooksOfTheUsers:
    @pytest.mark.parametrize("case", ["the user's, same dtype", "float16, float16", "ours, other dtype"])
    def test_a_hook_that_agrees_is_left_alone(self, case: str, ranks: list[dict[str, Any]]) -> None:
        assert ranks[0]["hooks"][case] == ""

    @pytest.mark.parametrize(
        ("case", "expected"),
        [
            ("the user's, other dtype", "'_hooks.<locals>.mean_of_all', and DDP permits one"),
            ("through prepare", "the plan sums gradients in 'bfloat16'"),
            (
                "float16, float32",
                "'fp16_compress_hook', and DDP permits one, while the plan sums gradients in 'float32'",
            ),
            ("mixed precision", "wrap the model without it"),
        ],
    )
    def test_one_that_does_not_is_refused(self, case: str, expected: str, ranks: list[dict[str, Any]]) -> None:
        assert expected in ranks[0]["hooks"][case]


class TestWeightsThatChangeTheirDtype:
    @pytest.mark.parametrize("wrapping", WRAPPINGS)
    def test_gradients_are_summed_again(self, wrapping: str, ranks: list[dict[str, Any]]) -> None:
        for rank in ranks:
            for when, agreed in rank["rebuilt"][wrapping].items():
                assert all(agreed), when

    def test_stock_ddp_silently_stops_summing_them(self, ranks: list[dict[str, Any]]) -> None:
        assert not any(rank["drift"] for rank in ranks)
