# SPDX-License-Identifier: Apache-2.0
"""Values past float16's 65504: in a gated product, in a square, in logits. bfloat16 and float32 hold them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.failures.models import (
    CLASSES,
    WIDTH,
    Classifier,
    FeedForward,
    GatedFeedForward,
    Residual,
    RMSNorm,
    WideNorm,
    classification,
    scaled_,
)
from tests.rehearse.failures.running import judged, matrix_units, reasons
from torch import Tensor, nn

from floatwise.stats import overflow_share, summarise

# -- a gated product --------------------------------------------------------------------------------------------

GAIN = 60.0


def test_the_product_of_two_halves_overflows_though_each_is_small() -> None:
    model, seen = GatedFeedForward(weight=10.0), {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda m, inputs, output, name=name: seen.update({name: (inputs[0], output)}))
    with torch.no_grad():
        x = torch.randn(32, WIDTH) * GAIN
        model(x)
        gated = summarise(seen["wo"][0].numpy())
        assert overflow_share(gated, "float16") == pytest.approx(0.18, abs=0.005)
        assert max(float(seen[half][1].abs().max()) for half in ("wi_0", "wi_1")) < 1700
        with matrix_units(torch.float16):
            assert bool(model(x).isnan().all())
        with matrix_units(torch.bfloat16):
            assert bool(model(x).isfinite().all())


def gated() -> nn.Module:
    return Classifier(Residual(FeedForward()), Residual(GatedFeedForward(10.0), GAIN), Residual(FeedForward()))


def test_bfloat16_holds_the_gated_product() -> None:
    assert judged(classification(gated), "bfloat16").status == "accept"


def test_the_gated_block_is_kept_in_float32_and_the_product_named() -> None:
    verdict = judged(classification(gated), "float16")
    assert [island.module for island in verdict.islands] == ["blocks.1.inner"]
    found = verdict.first.first_nonfinite
    assert found is not None
    assert (found.module, found.operator, found.result, found.step) == ("blocks.1.inner", "mul", "inf", 0)
    assert found.input_amax < 1700
    assert found.true_amax is not None
    assert found.true_amax > 65504
    assert [advice.code for advice in verdict.advice] == ["compute_in_float32"]


# -- a square ---------------------------------------------------------------------------------------------------


def by_hand() -> nn.Module:
    return RMSNorm(lambda x: x * x)


def by_power() -> nn.Module:
    return RMSNorm(lambda x: x.pow(2))  # CUDA's autocast computes powers in float32


def of_pytorch() -> nn.Module:
    return nn.LayerNorm(WIDTH)


@pytest.mark.parametrize(
    ("norm", "dtype", "deviation"),
    [
        (by_hand, torch.float16, 0.0),  # 1 / sqrt(inf): finite, and nothing is left
        (by_hand, torch.bfloat16, 1.0),
        (by_power, torch.float16, 1.0),
        (of_pytorch, torch.float16, 1.0),
    ],
)
def test_a_square_in_float16_makes_a_normalisation_zero(
    norm: Callable[[], nn.Module], dtype: torch.dtype, deviation: float
) -> None:
    x = (torch.randn(4, WIDTH) * 200).to(dtype)
    with torch.no_grad(), matrix_units(dtype):
        y = norm()(x).float()
    assert bool(y.isfinite().all())
    assert float(y.std()) == pytest.approx(deviation, abs=0.01)


def test_a_mean_as_a_sum_of_float16_is_nan_and_autocast_sums_in_float32() -> None:
    ones = torch.ones(100_000, dtype=torch.float16)
    assert bool((ones.sum() / torch.tensor(1e5).half()).isnan())
    with matrix_units(torch.float16):
        assert float(ones.sum() / 1e5) == 1.0


def normalised(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Classifier(Residual(WideNorm(norm())), Residual(FeedForward()))


def test_the_norm_that_squares_in_float16_is_found_though_nothing_stays_infinite() -> None:
    verdict = judged(classification(normalised(by_hand)), "float16")
    assert [island.module for island in verdict.islands] == ["blocks.0.inner.1"]
    assert reasons(verdict) == ["gradients_wrong", "gradients_vanish", "first_nonfinite"]
    assert all(row.rehearsed < 10 for row in verdict.first.losses)
    assert max(row.zero_share for row in verdict.first.gradients) == 1.0


@pytest.mark.parametrize(
    ("norm", "fmt"),
    [(by_hand, "bfloat16"), (by_power, "float16"), (of_pytorch, "float16"), (of_pytorch, "bfloat16")],
)
def test_other_norms_are_accepted(norm: Callable[[], nn.Module], fmt: str) -> None:
    assert judged(classification(normalised(norm)), fmt).status == "accept"


# -- logits -----------------------------------------------------------------------------------------------------


def with_logits(deviation: float) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        head = scaled_(nn.Linear(WIDTH, CLASSES), deviation / 3**-0.5)
        return Classifier(Residual(FeedForward()), head=head)

    return make


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
@pytest.mark.parametrize("deviation", [16, 64, 256])
def test_logits_that_have_grown_are_accepted_in_both_formats(deviation: float, fmt: str) -> None:
    assert judged(classification(with_logits(deviation)), fmt).status == "accept"


def test_logits_past_float16_make_the_head_an_island() -> None:
    make = classification(with_logits(2.0**15))
    verdict = judged(make, "float16")
    assert [island.module for island in verdict.islands] == ["head"]
    assert reasons(verdict) == ["loss_not_finite", "gradients_wrong", "first_nonfinite"]
    assert judged(make, "bfloat16").status == "accept"


@pytest.mark.parametrize(
    ("deviation", "bfloat16", "float16"), [(16, 5.0e-4, 7.7e-6), (64, 1.9e-3, 2.4e-5), (256, 5.6e-3, 6.9e-5)]
)
def test_rounded_logits_cost_bfloat16_eighty_times_what_they_cost_float16(
    deviation: float, bfloat16: float, float16: float
) -> None:
    logits = torch.randn(256, 1024) * deviation
    assert divergence(logits, torch.bfloat16) == pytest.approx(bfloat16, rel=0.05)
    assert divergence(logits, torch.float16) == pytest.approx(float16, rel=0.05)


def test_logits_of_a_deviation_of_16384_are_nan_in_float16() -> None:
    logits = torch.randn(256, 1024) * 2.0**14
    assert divergence(logits, torch.float16) != divergence(logits, torch.float16)
    assert divergence(logits, torch.bfloat16) < 0.02


def divergence(logits: Tensor, dtype: torch.dtype) -> float:
    """Returns the mean Kullback-Leibler divergence of the distributions that rounded logits give."""
    with matrix_units(dtype):
        rounded = F.linear(torch.eye(len(logits)), logits.T)
    true, seen = logits.double().log_softmax(-1), rounded.double().log_softmax(-1)
    return float((true.exp() * (true - seen)).sum(-1).mean())
