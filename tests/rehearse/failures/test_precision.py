# SPDX-License-Identifier: Apache-2.0
"""What rounding costs: signal over noise of each format, and two engines that round in different places."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tests.rehearse.failures.models import Language
from tests.rehearse.failures.running import matrix_units
from torch import Tensor, nn

from floatwise.formats.torch import round_to_format
from floatwise.rehearse.float8 import Float8Linears
from floatwise.rehearse.products import MatrixUnits
from floatwise.rehearse.sqnr import sqnr_db
from floatwise.stats import summarise, underflow_share

# -- signal over noise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "exponent", "ratio_db"),
    [
        (torch.float16, 0, 73.7),
        (torch.float16, -20, 34.9),
        (torch.float16, -24, 10.8),
        (torch.bfloat16, 0, 55.6),
        (torch.bfloat16, -20, 55.6),
        (torch.bfloat16, -24, 55.6),
    ],
)
def test_signal_over_noise_of_a_16_bit_product(dtype: torch.dtype, exponent: int, ratio_db: float) -> None:
    x = torch.randn(2048, 256) * 2.0**exponent
    with matrix_units(dtype):
        y = F.linear(x, torch.eye(256))  # nothing but the format's rounding
    assert sqnr_db(x, y) == pytest.approx(ratio_db, abs=0.1)


def test_float16_loses_what_its_exponents_say() -> None:
    x = torch.randn(2048, 256) * 2.0**-24
    with matrix_units(torch.float16):
        y = F.linear(x, torch.eye(256))
    assert float((y == 0).float().mean()) == pytest.approx(0.38, abs=0.005)
    assert underflow_share(summarise(x.numpy()), "float16") == pytest.approx(0.38, abs=0.005)


@pytest.mark.parametrize(("fmt", "ratio_db"), [("float8_e4m3fn", 31.5), ("float8_e5m2", 25.5)])
def test_float8_needs_a_scale_to_keep_its_ratio(fmt: str, ratio_db: float) -> None:
    x = torch.randn(2048, 256)
    assert sqnr_db(x, round_to_format(x, fmt)) == pytest.approx(ratio_db, abs=0.1)
    assert sqnr_db(x, round_to_format(x * 2.0**-20, fmt)) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("exponent", [0, -20])
def test_a_rehearsed_float8_layer_scales_what_it_multiplies(exponent: int) -> None:
    layer = nn.Linear(256, 256, bias=False)
    nn.init.eye_(layer.weight)
    x, gradient = (torch.randn(1024, 256) * 2.0**exponent for _ in range(2))
    inputs = x.clone().requires_grad_()
    with Float8Linears(layer, "tensorwise"):
        output = layer(inputs)
        output.backward(gradient)
    assert inputs.grad is not None
    assert sqnr_db(x, output.detach()) == pytest.approx(31.5, abs=0.2)  # e4m3
    assert sqnr_db(gradient, inputs.grad) == pytest.approx(25.5, abs=0.2)  # e5m2


# -- training and inference -------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """Mean difference of log-probabilities, and mean Kullback-Leibler divergence."""

    log_probability: float
    divergence: float


def mismatch(model: nn.Module, tokens: Tensor, dtype: torch.dtype) -> Mismatch:
    """Compares autocast, which trains, with a model in 16 bits, which infers."""
    with torch.no_grad(), matrix_units(dtype):
        trains = model(tokens).double().log_softmax(-1)
    with torch.no_grad(), MatrixUnits([dtype]):
        infers = copy.deepcopy(model).to(dtype)(tokens).double().log_softmax(-1)
    chosen = [p[:, :-1].gather(-1, tokens[:, 1:, None]) for p in (trains, infers)]
    divergence = (infers.exp() * (infers - trains)).sum(-1).mean()
    return Mismatch(float((chosen[0] - chosen[1]).abs().mean()), float(divergence))


def test_training_and_inference_differ_eight_times_as_much_in_bfloat16_as_in_float16() -> None:
    model, tokens = Language().eval(), torch.randint(512, (8, 64))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3)  # a model that is sure of what it says
    low, high = (mismatch(model, tokens, dtype) for dtype in (torch.bfloat16, torch.float16))
    # The facts' model is twice as wide: 1.89e-2.
    assert low.log_probability == pytest.approx(1.5e-2, rel=0.2)
    assert low.log_probability / high.log_probability == pytest.approx(8.0, rel=0.1)
    assert low.divergence / high.divergence == pytest.approx(68, rel=0.15)
