# SPDX-License-Identifier: Apache-2.0
"""Against torchao itself, where it is installed: the same weights, inputs and gradients give the same bits."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floatwise.rehearse.float8 import Float8Linears

torchao_float8 = pytest.importorskip("torchao.float8")

# Of torchao's own making.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.get_autocast_gpu_dtype:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@contextmanager
def cuda_region(dtype: torch.dtype | None) -> Iterator[None]:
    """Sets what torchao reads: it knows CUDA's autocast only, which no CPU tensor takes notice of."""
    if dtype is not None:
        torch.set_autocast_dtype("cuda", dtype)
        torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def results(layer: nn.Module, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    output = layer(x)
    output.backward(gradient.to(output.dtype))
    assert x.grad is not None
    return output.detach(), x.grad


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("region", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(32,), (3, 16), (2, 4, 24)])
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_results_are_torchaos_bit_for_bit(
    scaling: str, shape: tuple[int, ...], region: torch.dtype | None, magnitude: float
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    theirs: Any = nn.Sequential(copy.deepcopy(layer))
    config = torchao_float8.Float8LinearConfig.from_recipe_name(scaling)
    torchao_float8.convert_to_float8_training(theirs, config=dataclasses.replace(config, emulate=True))
    x = torch.randn(*shape, 64) * torch.logspace(-3, 1, 64) * magnitude
    gradient = torch.randn(*shape, 48) * 1e-3

    with Float8Linears(layer, scaling) as linears, torch.autocast("cpu", region, enabled=region is not None):
        ours = results(layer, x, gradient)
    assert linears.converted == ("",)
    with cuda_region(region):
        expected = results(theirs, x, gradient)
    for result, wanted in zip(ours, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert torch.equal(result, wanted)
    bias, weight = layer.bias.grad, layer.weight.grad
    assert bias is not None
    assert weight is not None
    assert torch.equal(bias, theirs[0].bias.grad)
    wanted = theirs[0].weight.grad
    if scaling == "rowwise_with_gw_hp" and region is not None:
        # A 16-bit product of torch's, which sums in an order of its own.
        torch.testing.assert_close(weight, wanted, rtol=2**-7, atol=1e-6 * float(wanted.abs().max()))
    else:
        assert torch.equal(weight, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["FLOOR", "RCEIL"])
@pytest.mark.parametrize("wide", [False, True])
def test_blocks_are_torchaos(mode: str, wide: bool, dtype: torch.dtype) -> None:
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    linear = pytest.importorskip("torchao.prototype.moe_training.mxfp8_linear")
    common = pytest.importorskip("torchao.quantization.quantize_.common.kernel_preference")
    if wide and mode == "RCEIL":
        pytest.skip("no scaling here has both")
    torch.manual_seed(0)
    layer = nn.Linear(96, 64, bias=False, dtype=dtype)
    x = (torch.randn(2, 64, 96) * torch.logspace(-3, 2, 96)).to(dtype)
    gradient = (torch.randn(2, 64, 64) * 1e-3).to(dtype)
    scaling = "mx_rceil" if mode == "RCEIL" else "mx_wide_gradients" if wide else "mx"
    with Float8Linears(layer, scaling):
        output, grad_input = results(layer, x, gradient)

    weight, values = layer.weight.detach().clone().requires_grad_(), x.clone().requires_grad_()
    theirs = linear.mx_mm.apply(
        values,
        weight,
        torch.float8_e4m3fn,
        torch.float8_e4m3fn,
        torch.float8_e5m2 if wide else torch.float8_e4m3fn,
        32,
        common.KernelPreference.EMULATED,
        config.MXFP8Dim0CastKernelChoice.TRITON,
        config.MXFP8Dim1CastKernelChoice.TORCH,
        config.ScaleCalculationMode[mode],
        False,
    )
    theirs.backward(gradient)
    for result, wanted in ((output, theirs), (grad_input, values.grad), (layer.weight.grad, weight.grad)):
        assert result is not None
        assert wanted is not None
        assert torch.equal(result, wanted)
