# SPDX-License-Identifier: Apache-2.0
"""Recipes with float8 products, rehearsed: what is accepted, what is not, and by which limits."""

from __future__ import annotations

from functools import cache, partial
from string import Formatter

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.cases.parts import LENGTH, WIDTH
from tests.rehearse.cases.planted import HEALTHY, PLANTED, autoencoder, transformer
from torch import Tensor, nn

from floatwise.language import Text
from floatwise.plan import ModulePolicy, Policy, recipe
from floatwise.plan.recipe_table import RECIPE_TABLE
from floatwise.rehearse.baseline import Baseline, measure_baseline
from floatwise.rehearse.compare import HARMLESS_FLOAT8_DB, compare
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.cuda_specials import CudaSpecials
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.float8_scaling import FLOAT8_SCALINGS
from floatwise.rehearse.float8_script import without_float8
from floatwise.rehearse.float8_texts import FLOAT8_ADVICE, FLOAT8_REMARKS
from floatwise.rehearse.islands import judge_by_rehearsal
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.running import opened
from floatwise.rehearse.training import MakeTraining, Training
from floatwise.rehearse.trial import rehearse
from floatwise.rehearse.verdict import Verdict
from floatwise.torch import prepare

STEPS = 6
FLOAT8 = ("fp8-tensorwise", "fp8-rowwise")
FURTHER = ("fp8-rowwise-gw-hp", "mxfp8")
GPT, ROTARY, LATE_SCALE = HEALTHY["gpt"].make, PLANTED["rotary"].make, PLANTED["late_scale"].make


class Digits(nn.Module):
    """A perceptron of the size that 8 by 8 images of ten digits take."""

    def __init__(self, hidden: int = 2) -> None:
        super().__init__()
        layers = [part for _ in range(hidden) for part in (nn.Linear(128, 128), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *layers, nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def digits(hidden: int = 2) -> MakeTraining:
    def make() -> Training:
        model = Digits(hidden)
        labels = torch.randint(10, (8, 64))
        images = torch.rand(10, 64)[labels] + 0.3 * torch.rand(8, 64, 64)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        return Training(model, optimizer, lambda step: F.cross_entropy(model(images[step % 8]), labels[step % 8]))

    return make


DIGITS = digits()


class Outlier(nn.Module):
    """A layer that gets a channel of 10,000, which it has learned to ignore, beside small values.

    Language models have such channels in their first token and few others: Sun et al. 2024, arXiv:2402.17762.

    Args:
      tokens: How many tokens have it; they are of no use.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH)
        used = (torch.arange(WIDTH) > 0).float()
        with torch.no_grad():
            self.up.weight.mul_(used)
        self.up.weight.register_hook(lambda grad: grad * used)

    def forward(self, x: Tensor) -> Tensor:
        outlier = torch.zeros_like(x)
        outlier[:, : self.tokens, 0] = 1e4
        y: Tensor = self.down(F.gelu(300.0 * self.up(x / 300.0 + outlier)))
        return y


TOKEN, CHANNEL = (transformer(ffn=partial(Outlier, tokens)) for tokens in (1, LENGTH))


@cache
def baseline(make: MakeTraining) -> Baseline:
    return measure_baseline(make, STEPS)


def judged(make: MakeTraining, name: str) -> Verdict:
    return judge_by_rehearsal(make, recipe(name), STEPS, baseline=baseline(make))


def compared(make: MakeTraining, name: str) -> Comparison:
    return compare(baseline(make), rehearse(make, recipe(name), STEPS))


# -- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize(
    "make", [GPT, DIGITS, digits(8), autoencoder], ids=["gpt", "digits", "deep_digits", "autoencoder"]
)
def test_healthy_trainings_are_accepted(make: MakeTraining, name: str) -> None:
    verdict = judged(make, name)
    assert verdict.status == "accept"
    assert verdict.plan == recipe(name)


def test_every_float8_recipe_has_a_scaling_and_is_rehearsed_here() -> None:
    scalings = {name: row.scaling for name, row in RECIPE_TABLE.items() if row.scaling is not None}
    assert set(scalings) == {*FLOAT8, *FURTHER}
    assert set(scalings.values()) <= set(FLOAT8_SCALINGS)


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.parametrize("make", [GPT, DIGITS], ids=["gpt", "digits"])
def test_further_recipes_accept_healthy_trainings(make: MakeTraining, name: str) -> None:
    assert judged(make, name).status == "accept"


@pytest.mark.parametrize(
    ("make", "name"),
    [(TOKEN, "fp8-tensorwise"), (CHANNEL, "fp8-tensorwise"), (CHANNEL, "fp8-rowwise"), (CHANNEL, "mxfp8")],
    ids=["token-tensorwise", "channel-tensorwise", "channel-rowwise", "channel-mx"],
)
def test_what_is_small_beside_an_outlier_of_its_scale_is_lost(make: MakeTraining, name: str) -> None:
    verdict = judged(make, name)
    assert verdict.status == "accept_with_islands"
    assert [island.module for island in verdict.islands] == ["blocks.1.ffn.up"]
    assert [(tried.module, tried.outcome) for tried in verdict.tried] == [("blocks.1.ffn.up", "passes")]
    assert {"gradients_wrong", "gradients_vanish"} <= {reason.code for reason in verdict.reasons}
    worst = verdict.first.modules[0]
    assert worst.module == "blocks.1.ffn.up"
    assert worst.output_db < 3.0


@pytest.mark.parametrize(
    ("make", "name"),
    [(TOKEN, "fp8-rowwise"), (TOKEN, "mxfp8"), (TOKEN, "bf16-mixed"), (CHANNEL, "bf16-mixed")],
    ids=["token-rowwise", "token-mx", "token-bfloat16", "channel-bfloat16"],
)
def test_with_a_scale_of_its_own_or_without_scales_it_is_not(make: MakeTraining, name: str) -> None:
    assert judged(make, name).status == "accept"


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize(
    ("make", "module"), [(ROTARY, "blocks.1.attention.rotary"), (LATE_SCALE, "blocks.1.attention")]
)
def test_what_bfloat16_loses_beside_float8_products_is_found(make: MakeTraining, module: str, name: str) -> None:
    assert [island.module for island in judged(make, name).islands] == [module]


# -- the rehearsal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOAT8)
def test_trains_as_a_loop_by_hand_does(name: str) -> None:
    plan = recipe(name)
    torch.manual_seed(0)
    training = DIGITS()
    precision = prepare(training.model, training.optimizer, without_float8(plan))
    losses = []
    with MatrixUnits([torch.bfloat16]), CudaSpecials(), Float8Linears(training.model, plan):
        for step in range(3):
            precision.zero_grad()
            with precision.forward():
                loss = training.loss(step)
            precision.backward(loss)
            precision.step()
            losses.append(float(loss.detach()))
    precision.close()
    trial = rehearse(DIGITS, plan, 3)
    assert trial.trained is not None
    assert list(trial.trained.losses) == losses
    assert trial.plan == plan
    assert trial.start.float8 is not None
    assert trial.start.float8.converted == ("layers.0", "layers.2", "layers.4")
    assert [layer.path for layer in trial.start.float8.left_out] == ["layers.6"]  # ten outputs


def test_islands_are_left_out_of_float8_and_nothing_stays_behind() -> None:
    island = ModulePolicy(module="blocks.0.ffn", policy=Policy(compute_dtype="float32"))
    plan = recipe("fp8-rowwise").model_copy(update={"modules": (island,)})
    with opened(GPT, plan, 0) as run:
        assert run.float8 is not None
        assert {layer.path: layer.code for layer in run.float8.left_out} == {
            "blocks.0.ffn.up": "island",
            "blocks.0.ffn.down": "island",
        }
        assert "blocks.1.ffn.up" in run.float8.converted
        model = run.training.model
        assert "forward" in vars(model.get_submodule("blocks.1.ffn.up"))
    assert not any("forward" in vars(module) for module in model.modules())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.ones(2).bfloat16().exp().dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_other_plans_convert_nothing(name: str) -> None:
    with opened(GPT, recipe(name), 0) as run:
        assert run.float8 is None
    assert rehearse(GPT, recipe(name), 1).start.float8 is None


def test_the_first_batch_tells_what_multiplied_in_float8_and_what_that_lost() -> None:
    use = rehearse(TOKEN, recipe("fp8-tensorwise"), 1).start.float8
    assert use is not None
    assert len(use.converted) == 13
    assert use.left_out == ()
    assert use.uneven_rows == {}
    assert use.counts["blocks.1.ffn.up", "input"].underflow_share > 0.9
    assert use.counts["blocks.0.ffn.up", "input"].underflow_share < 0.01
    assert use.counts["blocks.1.ffn.up", "input"].amax == pytest.approx(1e4, rel=0.01)


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOAT8)
def test_a_quarter_of_noise_is_harmless(name: str) -> None:
    rows = [row for row in compared(GPT, name).gradients if row.required_db is not None]
    assert len(rows) > 20
    for row in rows:
        batch = baseline(GPT).gradient_batch_db[row.parameter]
        assert row.required_db == pytest.approx(min(HARMLESS_FLOAT8_DB, batch + HARMLESS_FLOAT8_DB))


def test_modules_lose_only_what_one_rounding_to_float8_does_not() -> None:
    comparison = compared(GPT, "fp8-tensorwise")
    assert max(row.input_db for row in comparison.modules) == pytest.approx(28.8, abs=0.1)  # 3 bits of mantissa
    assert all(row.lost_db < 5.0 for row in comparison.modules)


def test_float8_where_nothing_is_eligible_is_judged_as_bfloat16() -> None:
    make = HEALTHY["cnn_bf16"].make
    float8, low = compared(make, "fp8-tensorwise"), compared(make, "bf16-mixed")
    assert float8.gradients == low.gradients
    assert float8.losses == low.losses
    assert float8.tolerance == low.tolerance


def test_a_training_that_seeds_itself_may_differ_by_the_rounding_of_float8() -> None:
    def make() -> Training:
        torch.manual_seed(1)
        return GPT()

    comparison, float32 = compared(make, "fp8-tensorwise"), baseline(make)
    assert comparison.spread_source == "permuted_reductions"
    finals = [sum(losses[-5:]) / 5 for losses in (float32.losses, *float32.other_losses)]
    spread = (max(finals) - min(finals)) * 2**20  # 23 bits of mantissa over 3
    assert comparison.tolerance == pytest.approx(max(spread, 0.005 * finals[0]))


# -- remarks and advice ---------------------------------------------------------------------------------------------


def test_says_which_layer_is_left_out_and_which_rows_are_uneven() -> None:
    def make() -> Training:
        training = DIGITS()
        return Training(training.model, training.optimizer, lambda step: training.model(torch.rand(20, 64)).sum())

    remarks = {remark.code: remark for remark in compared(make, "fp8-rowwise").remarks}
    assert remarks["float8_layers"].data == {"converted": 3, "total": 4, "module": "layers.6"}
    assert remarks["float8_uneven_rows"].data == {"module": "layers.0", "rows": 20, "multiple": 16}
    assert "3 of 4 linear layers" in str(remarks["float8_layers"])


def test_a_healthy_model_whose_layers_all_fit_calls_for_no_remark() -> None:
    assert compared(GPT, "fp8-tensorwise").remarks == ()


@pytest.mark.parametrize(("name", "advice"), [("fp8-tensorwise", "scale_by_rows"), ("fp8-rowwise", "bound_outliers")])
def test_says_what_becomes_of_small_values_and_what_to_do(name: str, advice: str) -> None:
    verdict = judged(CHANNEL, name)
    (remark,) = verdict.first.remarks
    assert remark.code == "float8_vanishes"
    assert (remark.data["module"], remark.data["role"]) == ("blocks.1.ffn.up", "input")
    assert [found.code for found in verdict.advice] == [advice]
    assert verdict.islands[0].reason == remark


def test_values_between_layers_are_rounded_to_bfloat16() -> None:
    (advice,) = judged(ROTARY, "fp8-tensorwise").advice
    assert advice.data == {"module": "blocks.1.attention.rotary", "format": "bfloat16"}


@pytest.mark.parametrize("text", [*FLOAT8_REMARKS.values(), *FLOAT8_ADVICE.values()], ids=lambda text: text.en[:20])
def test_sentences_say_the_same_in_both_languages(text: Text) -> None:
    names = [{name for _, name, _, _ in Formatter().parse(sentence) if name} for sentence in (text.en, text.zh)]
    assert names[0] == names[1]
