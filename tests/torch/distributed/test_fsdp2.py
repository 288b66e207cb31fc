# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.torch.distributed.fsdp2_workers import MASTERS, OWN, PLANS
from tests.torch.distributed.processes import on_ranks
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from floatwise.errors import PlanError
from floatwise.plan import Reductions, recipe
from floatwise.torch.distributed.fsdp2 import fully_shard_policy

Ranks = list[dict[str, Any]]
BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What both ranks bring back, from one start of two processes."""
    return on_ranks(2, "tests.torch.distributed.fsdp2_workers", "run", tmp_path_factory.mktemp("fsdp2"))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a | b)


class TestPolicy:
    @pytest.mark.parametrize(
        ("name", "reduce", "expected"),
        [
            ("fp32", "float32", MixedPrecisionPolicy(None, torch.float32, None, False)),
            ("bf16-mixed", "float32", MixedPrecisionPolicy(BF16, torch.float32, None, False)),
            ("fp16-mixed", "float32", MixedPrecisionPolicy(torch.float16, torch.float32, None, False)),
            ("bf16-mixed", "bfloat16", MixedPrecisionPolicy(BF16, BF16, None, False)),
        ],
    )
    def test_fsdp2s_param_dtype_is_the_plans_compute_dtype(
        self, name: str, reduce: str, expected: MixedPrecisionPolicy
    ) -> None:
        reductions = Reductions.model_validate({"reduce_dtype": reduce})
        assert fully_shard_policy(recipe(name, reductions=reductions)) == expected

    def test_a_plan_that_is_not_applied_is_refused(self) -> None:
        with pytest.raises(PlanError, match="float8"):
            fully_shard_policy("fp8-tensorwise")


class TestTraining:
    @pytest.mark.parametrize("own", OWN)
    @pytest.mark.parametrize("plan", PLANS)
    def test_two_shards_are_ddp_bit_for_bit_however_they_were_made(self, plan: str, own: str, ranks: Ranks) -> None:
        for rank in ranks:
            assert same(rank["training"][plan][own], rank["training"][plan]["ddp"])

    @pytest.mark.parametrize("plan", [name for name in PLANS if name != "bfloat16 sums"])
    def test_and_one_process_with_all_the_data(self, plan: str, ranks: Ranks) -> None:
        assert same(ranks[0]["training"][plan]["alone"], ranks[0]["training"][plan]["none"])

    def test_stock_fsdp2_rounds_more_than_products(self, ranks: Ranks) -> None:
        stock, ours = ranks[0]["own policy alone"], ranks[0]["training"]["bf16-mixed"]["alone"]
        worst = max(float((stock[name] - ours[name]).abs().max()) for name in ours)
        assert worst > 1e-3

    def test_micro_batches_are_summed_in_float32_also_where_ranks_are_in_16_bits(self, ranks: Ranks) -> None:
        assert same(ranks[0]["accumulated"]["fsdp2"], ranks[0]["accumulated"]["ddp"])

    def test_an_overflow_on_one_rank_is_skipped_on_both(self, ranks: Ranks) -> None:
        for (infos, weights), (ddp_infos, ddp_weights) in (rank["overflow"] for rank in ranks):
            assert [info.skipped for info in infos] == [False, True, False, False]
            assert [info.loss_scale for info in infos] == [info.loss_scale for info in ddp_infos]
            assert [info.skipped for info in ddp_infos] == [False, True, False, False]
            assert weights.keys() == ddp_weights.keys()
        assert same(ranks[0]["overflow"][0][1], ranks[1]["overflow"][0][1])

    def test_grouped_recomputed_and_frozen_modules_are_ddp_bit_for_bit(self, ranks: Ranks) -> None:
        assert same(ranks[0]["shapes"]["fsdp2"], ranks[0]["shapes"]["ddp"])

    @pytest.mark.parametrize("when", ["late", "twice"])
    def test_the_plan_may_come_after_a_forward_pass(self, when: str, ranks: Ranks) -> None:
        assert same(ranks[0]["when"]["early"], ranks[0]["when"][when])

    def test_an_optimizer_of_gathered_weights_is_refused(self, ranks: Ranks) -> None:
        assert "make the optimizer before the first forward pass" in ranks[0]["gathered optimizer"]


class TestWhatIsGathered:
    def test_matrices_in_16_bits_and_all_else_in_float32(self, ranks: Ranks) -> None:
        low = {name for name, dtype in ranks[0]["gathered"]["bf16-mixed"].items() if dtype == "bfloat16"}
        block = {"up.weight", "up.bias", "down.weight", "down.bias", "attention.in_proj_weight"}
        block |= {"attention.in_proj_bias"}
        assert low == {f"blocks.{i}.{name}" for i in (0, 1) for name in block} | {"score.weight", "score.bias"}
        full = set(ranks[0]["gathered"]["bf16-mixed"]) - low
        assert {"words.weight", "head.weight", "blocks.0.norm.weight"} <= full  # the head is tied to the embedding

    def test_islands_in_float32(self, ranks: Ranks) -> None:
        gathered = ranks[0]["gathered"]["an island"]
        assert (gathered["blocks.0.up.weight"], gathered["blocks.1.up.weight"]) == ("bfloat16", "float32")

    def test_everything_in_float32_under_a_float32_plan(self, ranks: Ranks) -> None:
        assert set(ranks[0]["gathered"]["fp32"].values()) == {"float32"}


class TestTheEnd:
    def test_the_model_gets_its_own_formats_back(self, ranks: Ranks) -> None:
        before, after, policy = ranks[0]["restored"]
        assert before == after
        assert policy == MixedPrecisionPolicy()

    def test_a_forward_pass_outside_the_region_says_so(self, ranks: Ranks) -> None:
        assert "inside `with precision.forward():`" in ranks[0]["outside"]


class TestWeightsThatChangeTheirDtype:
    @pytest.mark.parametrize("steps_before", [0, 1])
    def test_training_goes_on_with_the_same_parameters(self, steps_before: int, ranks: Ranks) -> None:
        for rank in ranks:
            result = rank["converted"][steps_before]
            assert result["same objects"]
            assert result["dtypes"] == {BF16}
            assert same(*result["weights"])
            assert same(*result["gradients"])
            assert {g.dtype for g in result["gradients"][0].values()} == {BF16}
            assert result["moved"]
            assert result["back"] == {torch.float32}

    def test_a_group_of_two_dtypes_is_refused(self, ranks: Ranks) -> None:
        said = ranks[0]["mixed group"]
        assert "'blocks.0.up.weight' in bfloat16" in said
        assert "call fully_shard on the modules that stay in float32" in said


class TestMasters:
    @pytest.mark.parametrize("plan", MASTERS)
    def test_shards_with_16_bit_weights_are_ddp_bit_for_bit(self, plan: str, ranks: Ranks) -> None:
        weights = ranks[0]["masters"][plan]["fsdp2"]
        assert {weight.dtype for weight in weights.values()} == {torch.float32}
        assert same(weights, ranks[0]["masters"][plan]["ddp"])


class TestFsdp1:
    def test_it_trains_as_fsdp2_does(self, ranks: Ranks) -> None:
        fsdp1, fsdp2 = ranks[0]["fsdp1"]["losses"]
        assert fsdp1 == fsdp2

    @pytest.mark.parametrize(
        ("case", "expected"),
        [
            ("casts", "with MixedPrecision(param_dtype=bfloat16), which stays as it was made"),
            ("sums in bfloat16", "wrap the model with mixed_precision=None"),
            ("sums in float32", "mixed_precision=MixedPrecision(reduce_dtype=torch.bfloat16)"),
        ],
    )
    def test_formats_of_its_own_that_the_plan_does_not_have_are_refused(
        self, case: str, expected: str, ranks: Ranks
    ) -> None:
        assert expected in ranks[0]["fsdp1"]["said"][case]

    def test_those_that_it_has_are_not(self, ranks: Ranks) -> None:
        assert ranks[0]["fsdp1"]["said"]["agrees"] == ""


class TestCheckpoints:
    def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(self, ranks: Ranks) -> None:
        for rank in ranks:
            unbroken, resumed = rank["checkpoint"]["losses"]
            assert unbroken == resumed
            assert len({scale for _, scale in unbroken}) > 1
            assert same(*rank["checkpoint"]["weights"])
            assert rank["checkpoint"]["dtypes"] == {torch.float32}
