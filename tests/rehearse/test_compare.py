# SPDX-License-Identifier: Apache-2.0
"""A rehearsal held against float32: what counts as worse, by which limit, and what does not."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatwise.plan import LossScale, Plan, Policy, Weights, recipe
from floatwise.rehearse.baseline import Baseline, measure_baseline
from floatwise.rehearse.compare import compare
from floatwise.rehearse.comparison import Comparison
from floatwise.rehearse.evidence import EVIDENCE
from floatwise.rehearse.permuted import PermutedReductions
from floatwise.rehearse.sqnr import cosine, sqnr_db
from floatwise.rehearse.training import MakeTraining, Training
from floatwise.rehearse.trial import rehearse


class Net(nn.Module):
    """Two layers; `scale` stands between them."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(16, 32), nn.Linear(32, 4), scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)) * self.scale)
        return y


def classification(model: Callable[[], nn.Module] = Net, weight: float = 1.0, lr: float = 0.1) -> MakeTraining:
    """Makes a training with a new batch each step; `weight` multiplies the loss, `lr` is the learning rate."""

    def make() -> Training:
        net = model()
        inputs, labels = torch.randn(20, 32, 16), torch.randint(4, (20, 32))
        optimizer = torch.optim.SGD(net.parameters(), lr)

        def loss(step: int) -> Tensor:
            value = F.cross_entropy(net(inputs[step]).float(), labels[step])
            return value * weight

        return Training(net, optimizer, loss)

    return make


def seeded(make: MakeTraining) -> MakeTraining:
    """A training that seeds itself."""

    def made() -> Training:
        torch.manual_seed(3)
        return make()

    return made


def compared(make: MakeTraining, plan: Plan | str, steps: int = 6) -> tuple[Baseline, Comparison]:
    baseline = measure_baseline(make, steps)
    whole = recipe(plan) if isinstance(plan, str) else plan
    trial = rehearse(make, whole, steps, known=baseline.known, true_amax=baseline.trial.start.amax)
    return baseline, compare(baseline, trial)


def codes(comparison: Comparison) -> list[str]:
    return [problem.code for problem in comparison.problems]


# -- measures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true", "seen", "ratio", "angle"),
    [
        ([1.0, 2.0], [1.0, 2.0], math.inf, 1.0),
        ([3.0, 4.0], [3.0, 4.5], 20.0, None),
        ([1.0, 0.0], [0.0, 1.0], 10 * math.log10(1 / 2), 0.0),
        ([1.0, 1.0], [-1.0, -1.0], 10 * math.log10(1 / 4), -1.0),
        ([1.0, 1.0], [0.0, 0.0], 0.0, None),
        ([1.0, 1.0], [math.nan, 1.0], -math.inf, None),
        ([1.0, 1.0], [math.inf, 1.0], -math.inf, None),
        ([0.0, 0.0], [1.0, 1.0], None, None),
    ],
)
def test_ratio_and_angle(true: list[float], seen: list[float], ratio: float | None, angle: float | None) -> None:
    assert sqnr_db(torch.tensor(true), torch.tensor(seen)) == (None if ratio is None else pytest.approx(ratio))
    if angle is not None:
        assert cosine(torch.tensor(true), torch.tensor(seen)) == pytest.approx(angle)


@pytest.mark.parametrize(
    "module",
    [nn.Linear(64, 8), nn.Conv2d(16, 4, 2), nn.ConvTranspose2d(16, 4, 2), nn.Conv2d(16, 16, 2, groups=4)],
    ids=lambda module: type(module).__name__,
)
def test_permuted_reductions_change_the_rounding_and_nothing_else(module: nn.Module) -> None:
    x = torch.randn(5, 64) if isinstance(module, nn.Linear) else torch.randn(5, 16, 4, 4)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        module.to(dtype).zero_grad()
        inputs = x.to(dtype, copy=True).requires_grad_()
        module(inputs).square().sum().backward()
        return [inputs.grad, *(p.grad.clone() for p in module.parameters())]  # type: ignore[union-attr, list-item]

    plain, exact = gradients(torch.float32), gradients(torch.float64)
    with PermutedReductions(1):
        permuted64, permuted = gradients(torch.float64), gradients(torch.float32)
    for true, other in zip(exact, permuted64, strict=True):
        torch.testing.assert_close(true, other, rtol=1e-12, atol=1e-12)
    assert any(not torch.equal(a, b) for a, b in zip(plain, permuted, strict=True))


# -- float32's own spread ---------------------------------------------------------------------------------------


def test_seeds_give_the_spread_where_they_have_an_effect() -> None:
    baseline = measure_baseline(classification(), 5)
    assert baseline.spread_source == "seeds"
    assert len({baseline.losses, *baseline.other_losses}) == 3


def test_another_order_of_summation_gives_the_spread_where_the_training_seeds_itself() -> None:
    baseline = measure_baseline(seeded(classification()), 5)
    assert baseline.spread_source == "permuted_reductions"
    for losses in baseline.other_losses:
        assert losses != baseline.losses
        assert losses == pytest.approx(baseline.losses, rel=1e-5)


def test_the_random_state_of_the_caller_is_left_alone() -> None:
    before = torch.get_rng_state()
    measure_baseline(classification(), 2)
    assert torch.equal(torch.get_rng_state(), before)


# -- what passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp32", "fp16-mixed", "bf16-mixed", "fp16-master", "bf16-master"])
@pytest.mark.parametrize("make", [classification(), seeded(classification())], ids=["seeds", "permuted"])
def test_a_healthy_training_passes_under_every_recipe(name: str, make: MakeTraining) -> None:
    _, comparison = compared(make, name)
    assert codes(comparison) == []
    assert comparison.first_nonfinite is None


def test_float32_against_itself_is_equal() -> None:
    baseline, comparison = compared(classification(), "fp32")
    assert all(row.sqnr_db == math.inf for row in comparison.gradients)
    assert [row.distance for row in comparison.losses] == [0.0] * 6
    assert comparison.final_losses[0] == sum(baseline.losses[-5:]) / 5


def test_a_gradient_that_float32_does_not_know_either_may_be_noise() -> None:
    class Normalised(nn.Module):
        """The bias before a batch normalisation has no influence: its gradient is rounding error alone."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.norm(self.first(x)).relu())
            return y

    _, comparison = compared(classification(Normalised), "fp16-mixed")
    bias = next(row for row in comparison.gradients if row.parameter == "first.bias")
    assert bias.sqnr_db is not None
    assert bias.sqnr_db < 0
    assert comparison.passes


def test_an_infinity_that_does_no_harm_is_a_remark() -> None:
    class Saturated(Net):
        def forward(self, x: Tensor) -> Tensor:
            gate = torch.sigmoid(self.first(x) * 3e4 * 3e4)  # 0 or 1 in float32 as well
            y: Tensor = self.second(self.first(x) * gate)
            return y

    _, comparison = compared(classification(Saturated), "fp16-mixed")
    assert comparison.passes
    assert comparison.first_nonfinite is not None
    assert [remark.code for remark in comparison.remarks] == ["nonfinite_harmless"]


def test_a_scale_that_is_too_large_at_first_only_costs_some_steps() -> None:
    _, comparison = compared(classification(weight=64.0, lr=0.001), recipe("fp16-mixed", loss_scale=LossScale()))
    assert comparison.passes
    assert comparison.loss_scale is not None
    assert comparison.loss_scale == 2.0**16 / 2**comparison.settling_skips
    _, larger = compared(
        classification(weight=64.0, lr=0.001), recipe("fp16-mixed", loss_scale=LossScale(initial_scale=2.0**24))
    )
    assert larger.settling_skips == comparison.settling_skips + 8
    assert "scale_settles" in [remark.code for remark in larger.remarks]


# -- what does not ----------------------------------------------------------------------------------------------


def test_an_overflow_is_named() -> None:
    _, comparison = compared(classification(lambda: Net(scale=1e5)), "fp16-mixed")
    assert codes(comparison)[:2] == ["loss_not_finite", "gradients_wrong"]
    found = comparison.first_nonfinite
    assert found is not None
    assert (found.module, found.operator, found.step, found.format) == ("", "mul", 0, "float16")
    assert found.true_amax == pytest.approx(1e5, rel=0.1)


def test_gradients_that_vanish_without_a_loss_scale_are_seen_and_with_it_they_do_not() -> None:
    static = LossScale(mode="static", initial_scale=1.0)
    tiny = classification(weight=1e-7, lr=1e5)
    _, without = compared(tiny, recipe("fp16-mixed", loss_scale=static))
    assert "gradients_vanish" in codes(without)
    worst = max(without.gradients, key=lambda row: row.zero_share)
    assert worst.zero_share > 0.9
    assert worst.float32_zero_share == 0.0
    scaled = LossScale(initial_scale=2.0**24)
    _, planned = compared(tiny, recipe("fp16-mixed", loss_scale=scaled))
    assert codes(planned) == []


def test_updates_that_16_bit_weights_lose_are_seen_and_with_masters_they_arrive() -> None:
    make = classification(lr=1e-4)
    low = Policy(param_dtype="bfloat16", compute_dtype="bfloat16", output_dtype="float32")
    _, with_masters = compared(make, recipe("bf16-master"))
    assert codes(with_masters) == []
    assert max(row.stalled_share for row in with_masters.gradients) < 0.1
    _, stochastic = compared(make, recipe("bf16-master", policy=low, weights=Weights(master="stochastic")))
    assert "updates_stall" not in codes(stochastic), "it moves a weight now and then, and right on average"
    tiny = recipe("bf16-master", policy=low, weights=Weights(master="kahan"))
    _, kahan = compared(classification(lr=1e-6), tiny)
    assert "updates_stall" in codes(kahan)


def test_a_gradient_too_large_for_every_scale_is_seen() -> None:
    _, comparison = compared(classification(weight=1e9, lr=1e-12), recipe("fp16-mixed"))
    assert "gradients_not_finite" in codes(comparison)
    assert comparison.loss_scale is None


def test_a_float32_run_that_is_not_finite_is_told_apart() -> None:
    baseline = measure_baseline(classification(weight=math.nan), 2)
    assert not baseline.is_finite


# -- as data and as words ---------------------------------------------------------------------------------------


def test_everything_is_json() -> None:
    _, comparison = compared(classification(lambda: Net(scale=1e5)), "fp16-mixed")
    values = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert values["passes"] is False
    assert values["problems"][0]["code"] == "loss_not_finite"
    assert values["first_nonfinite"]["operator"] == "mul"
    assert values["gradients"][0]["sqnr_db"] == "-inf"


@pytest.mark.parametrize("code", EVIDENCE)
def test_both_languages_say_the_same(code: str) -> None:
    text = EVIDENCE[code]
    names = [{name for _, name, _, _ in string.Formatter().parse(line) if name} for line in (text.en, text.zh)]
    assert names[0] == names[1]
