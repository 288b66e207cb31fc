# SPDX-License-Identifier: Apache-2.0
"""The island search finds what was planted, and it alone; in healthy models it finds nothing."""

from __future__ import annotations

import json

import pytest
import torch
from tests.rehearse.cases.parts import Block, Transformer, language_training
from tests.rehearse.cases.planted import (
    HEALTHY,
    PLANTED,
    GatedFeedForward,
    GrownHead,
    OverflowingGate,
    transformer,
)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from floatwise.plan import recipe
from floatwise.rehearse.islands import judge_by_rehearsal
from floatwise.rehearse.verdict import Verdict

STEPS = 6


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    return {
        name: judge_by_rehearsal(case.make, recipe(case.recipe), STEPS) for name, case in {**PLANTED, **HEALTHY}.items()
    }


@pytest.mark.parametrize("name", PLANTED)
def test_finds_the_planted_module_alone(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict, case = verdicts[name], PLANTED[name]
    assert verdict.status == "accept_with_islands"
    assert [island.module for island in verdict.islands] == [case.module]
    assert [entry.module for entry in verdict.plan.modules] == [case.module]
    assert verdict.reasons
    assert verdict.last.passes


@pytest.mark.parametrize("name", PLANTED)
def test_the_first_module_tried_is_the_right_one(name: str, verdicts: dict[str, Verdict]) -> None:
    assert [(tried.module, tried.outcome) for tried in verdicts[name].tried] == [(PLANTED[name].module, "passes")]


@pytest.mark.parametrize("name", PLANTED)
def test_says_how_the_rounding_could_be_moved_instead(name: str, verdicts: dict[str, Verdict]) -> None:
    assert [advice.code for advice in verdicts[name].advice] == [PLANTED[name].advice]


@pytest.mark.parametrize("name", HEALTHY)
def test_finds_nothing_in_a_healthy_model(name: str, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[name]
    assert verdict.status == "accept"
    assert [len(x) for x in (verdict.islands, verdict.reasons, verdict.advice, verdict.tried)] == [0, 0, 0, 0]
    assert verdict.plan == recipe(HEALTHY[name].recipe)


@pytest.mark.parametrize("name", ["gated_ffn", "rms_norm", "logits", "summed_loss"])
def test_what_is_too_large_for_float16_is_not_for_bfloat16(name: str) -> None:
    assert judge_by_rehearsal(PLANTED[name].make, recipe("bf16-mixed"), STEPS).status == "accept"


@pytest.mark.parametrize(("name", "other"), [("rotary", "fp16-mixed"), ("late_scale", "bf16-mixed")])
def test_what_is_rounded_away_is_lost_in_both_formats(name: str, other: str) -> None:
    verdict = judge_by_rehearsal(PLANTED[name].make, recipe(other), STEPS)
    assert [island.module for island in verdict.islands] == [PLANTED[name].module]
    assert verdict.first.first_nonfinite is None
    assert [advice.code for advice in verdict.advice] == ["not_from_rounded"]


def test_finds_each_of_two() -> None:
    def make() -> Transformer:
        model = Transformer(ffn=GatedFeedForward)
        model.blocks[0].ffn = GatedFeedForward()
        return model

    verdict = judge_by_rehearsal(lambda: language_training(make()), recipe("fp16-mixed"), STEPS)
    assert [island.module for island in verdict.islands] == ["blocks.0.ffn.wo", "blocks.1.ffn.wo"]
    assert [tried.outcome for tried in verdict.tried] == ["helps", "passes"]


def test_an_operator_between_modules_takes_the_module_around_it() -> None:
    verdict = judge_by_rehearsal(transformer(ffn=OverflowingGate), recipe("fp16-mixed"), STEPS)
    assert [island.module for island in verdict.islands] == ["blocks.1.ffn"]


class HarmlessGate(nn.Module):
    """Makes an infinity first, which a sigmoid makes 1: as in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        return y * torch.sigmoid(y * 3e4 * 3e4)


def test_drops_an_island_that_turns_out_to_be_unneeded() -> None:
    verdict = judge_by_rehearsal(transformer(ffn=HarmlessGate, head=GrownHead), recipe("fp16-mixed"), STEPS)
    assert [island.module for island in verdict.islands] == ["head.project"]
    assert [(tried.module, tried.outcome) for tried in verdict.tried] == [
        ("blocks.1.ffn", "helps"),
        ("head.project", "passes"),
        ("blocks.1.ffn", "unneeded"),
    ]


def test_an_island_costs_its_share_of_the_matrix_flops(verdicts: dict[str, Verdict]) -> None:
    training = PLANTED["gated_ffn"].make()
    with FlopCounterMode(display=False) as counter:
        training.loss(0).backward()
    rows, products = 8 * 16, 3  # tokens of a batch; forward and both gradients
    share = products * 2 * rows * 32 * 128 / counter.get_total_flops()
    assert verdicts["gated_ffn"].flops_share == pytest.approx(share)
    assert verdicts["rms_norm"].flops_share == 0.0


def _block(module: nn.Module) -> Block:
    assert isinstance(module, Block)
    return module


def test_islands_that_hold_most_of_the_work_are_refused() -> None:
    class Overflowing(Transformer):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for block in map(_block, self.blocks):
                x = block.ffn(block.norm1(x))
            logits: Tensor = self.head(self.norm(x))
            return logits

    def make() -> Transformer:
        model = Overflowing(ffn=OverflowingGate)
        model.blocks[0].ffn = OverflowingGate()
        return model

    verdict = judge_by_rehearsal(lambda: language_training(make()), recipe("fp16-mixed"), STEPS)
    assert verdict.status == "refuse"
    assert verdict.reasons[0].code == "islands_too_large"
    assert verdict.flops_share > 0.5


def test_a_verdict_is_json(verdicts: dict[str, Verdict]) -> None:
    values = json.loads(json.dumps(verdicts["rotary"].to_json(), allow_nan=False))
    assert values["islands"][0]["module"] == "blocks.1.attention.rotary"
    assert values["comparison"]["passes"] is True
    assert values["without_islands"]["passes"] is False


@pytest.mark.parametrize("name", PLANTED)
def test_planted_models_learn_in_float32(name: str) -> None:
    torch.manual_seed(0)
    training = PLANTED[name].make()
    losses = []
    for step in range(30):
        training.optimizer.zero_grad()
        loss = training.loss(step)
        loss.backward()
        training.optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
