# SPDX-License-Identifier: Apache-2.0
"""Constants that 16 bits do not hold: an epsilon that is zero, a mask that is infinite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.rehearse.failures.models import (
    WIDTH,
    Classifier,
    FeedForward,
    MaskedAttention,
    Residual,
    RMSNorm,
    classification,
)
from tests.rehearse.failures.running import judged, matrix_units, reasons
from torch import Tensor, nn

from floatwise.torch import MasterWeights

# -- epsilons ---------------------------------------------------------------------------------------------------

# Half of float16's smallest number is 3e-8: 1e-8 is added in vain.


@pytest.mark.parametrize(
    ("gradient", "float16", "bfloat16"),
    [(0.0, "nan", "1.0"), (1e-4, "-inf", "1.0")],  # bfloat16: finite, and the update is lost
)
def test_adam_divides_by_zero_in_float16(gradient: float, float16: str, bfloat16: str) -> None:
    for dtype, result in ((torch.float16, float16), (torch.bfloat16, bfloat16)):
        weight = nn.Parameter(torch.ones(3, dtype=dtype))
        weight.grad = torch.full_like(weight, gradient)
        torch.optim.Adam([weight], lr=1e-3).step()
        assert [str(x) for x in weight.tolist()] == [result] * 3


@pytest.mark.parametrize(("gradient", "result"), [(0.0, 1.0), (1e-4, 0.999)])
@pytest.mark.parametrize(("dtype", "mode"), [(torch.float16, "float32"), (torch.bfloat16, "split")])
def test_adam_on_master_weights_does_as_in_float32(
    dtype: torch.dtype, mode: str, gradient: float, result: float
) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = MasterWeights(torch.optim.Adam([weight], lr=1e-3), mode)
    weight.grad = torch.full_like(weight, gradient)
    optimizer.step()
    assert optimizer.master(weight).tolist() == pytest.approx([result] * 3, abs=1e-6)


def blank_inputs(eps: float) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        norm = RMSNorm(lambda x: x * x, eps)
        first = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), norm, nn.Linear(WIDTH, WIDTH))
        return Classifier(first, Residual(FeedForward()))

    return make


def test_a_norm_of_zeros_is_nan_when_its_epsilon_vanishes() -> None:
    zeros = torch.zeros(2, WIDTH)
    for dtype, eps, is_nan in (
        (torch.float16, 1e-8, True),
        (torch.float16, 1e-6, False),
        (torch.bfloat16, 1e-8, False),
    ):
        with matrix_units(dtype):
            assert bool(RMSNorm(lambda x: x * x, eps)(zeros.to(dtype)).isnan().all()) is is_nan


def test_the_norm_with_the_vanishing_epsilon_is_found() -> None:
    verdict = judged(classification(blank_inputs(1e-8), blank=True), "float16")
    assert [island.module for island in verdict.islands] == ["blocks.0.1"]
    assert reasons(verdict) == ["loss_not_finite", "gradients_wrong", "first_nonfinite"]
    found = verdict.first.first_nonfinite
    assert found is not None
    assert (found.module, found.operator) == ("blocks.0.1", "rsqrt")


@pytest.mark.parametrize(("eps", "fmt"), [(1e-6, "float16"), (1e-8, "bfloat16")])
def test_an_epsilon_that_the_format_holds_is_accepted(eps: float, fmt: str) -> None:
    assert judged(classification(blank_inputs(eps), blank=True), fmt).status == "accept"


# -- masks ------------------------------------------------------------------------------------------------------


def filled(scores: Tensor, forbidden: Tensor) -> Tensor:
    return scores.masked_fill(forbidden, -1e9)


def added(scores: Tensor, forbidden: Tensor) -> Tensor:
    return scores + forbidden.to(scores.dtype) * -1e9


def lowest(scores: Tensor, forbidden: Tensor) -> Tensor:
    return scores.masked_fill(forbidden, torch.finfo(scores.dtype).min)


def lowest_of_float32(scores: Tensor, forbidden: Tensor) -> Tensor:
    return scores + forbidden.to(scores.dtype) * torch.finfo(torch.float32).min


def two_lowest(scores: Tensor, forbidden: Tensor) -> Tensor:
    mask = forbidden.to(scores.dtype) * torch.finfo(scores.dtype).min
    return scores + (mask + mask)


Mask = Callable[[Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    ("mask", "float16", "bfloat16"),
    [
        (added, "nan", "0.25"),
        (lowest, "0.25", "0.25"),
        (lowest_of_float32, "nan", "nan"),
        (two_lowest, "nan", "nan"),
    ],
)
def test_a_row_that_is_masked_as_a_whole(mask: Mask, float16: str, bfloat16: str) -> None:
    scores, forbidden = torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool)
    for dtype, result in ((torch.float16, float16), (torch.bfloat16, bfloat16)):
        with matrix_units(dtype):
            row = mask(scores.to(dtype), forbidden).softmax(-1)[0]
        assert [str(x) for x in row.tolist()] == [result] * 4


def test_the_lowest_float16_and_a_score_below_zero_are_infinite_together() -> None:
    low = torch.tensor([-30.0, 5.0], dtype=torch.float16)
    assert (low + torch.finfo(torch.float16).min).tolist() == [-torch.inf, -65504.0]


def masked(mask: Mask) -> Callable[[], nn.Module]:
    return lambda: Classifier(Residual(MaskedAttention(mask)), Residual(FeedForward()))


@pytest.mark.parametrize(
    ("mask", "fmt"), [(added, "float16"), (lowest_of_float32, "float16"), (lowest_of_float32, "bfloat16")]
)
def test_the_attention_with_the_infinite_mask_is_found(mask: Mask, fmt: str) -> None:
    verdict = judged(classification(masked(mask), 6), fmt)
    assert [island.module for island in verdict.islands] == ["blocks.0.inner"]
    assert reasons(verdict)[0] == "gradients_not_finite"  # padding is no part of the loss
    found = verdict.first.first_nonfinite
    assert found is not None
    assert (found.module, found.operator, found.result) == ("blocks.0.inner", "mul", "-inf")


@pytest.mark.parametrize(
    ("mask", "fmt"), [(lowest, "float16"), (lowest, "bfloat16"), (added, "bfloat16"), (filled, "bfloat16")]
)
def test_masks_that_the_format_holds_are_accepted(mask: Mask, fmt: str) -> None:
    assert judged(classification(masked(mask), 6), fmt).status == "accept"


def test_filling_in_what_float16_does_not_hold_fails_as_on_cuda() -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        judged(classification(masked(filled), 6), "float16")


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
def test_two_masks_of_the_lowest_number_fail_in_float32_as_well(fmt: str) -> None:
    verdict = judged(classification(masked(two_lowest), 6), fmt)
    assert (verdict.status, reasons(verdict)) == ("refuse", ["baseline_not_finite"])
