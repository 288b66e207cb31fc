# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from floatwise.errors import BadInputError, UnknownNameError
from floatwise.formats import BLOCK_FORMATS, quantize_blocks

Floats = NDArray[np.float32]

# Element, its largest value, and the exponent of its largest power of two: OCP MX 1.0, tables of section 5.3.
MX_ELEMENTS: dict[str, tuple[Any, float, int]] = {
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0, 15),
    "mxfp6_e2m3": (ml_dtypes.float6_e2m3fn, 7.5, 2),
    "mxfp6_e3m2": (ml_dtypes.float6_e3m2fn, 28.0, 4),
    "mxfp4_e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 2),
    "mxint8": (None, 127 / 64, 0),
}
MX = sorted(MX_ELEMENTS)

blocks_of_32 = hnp.arrays(
    np.float32, 32, elements=st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
)


def mx_block(name: str, block: Floats) -> list[float]:
    """One block as section 6.3 describes it, element by element."""
    dtype, largest, max_exponent = MX_ELEMENTS[name]
    amax = max(abs(float(v)) for v in block)
    exponent = math.floor(math.log2(amax)) - max_exponent if amax else 0
    scale = 2.0 ** min(max(exponent, -127), 127)
    quantised = []
    for value in block:
        element = min(max(float(value) / scale, -largest), largest)
        if dtype is None:
            quantised.append(round(element * 64) / 64 * scale)
        else:
            quantised.append(float(np.float64(element).astype(dtype)) * scale)
    return quantised


@pytest.mark.parametrize("name", MX)
@settings(max_examples=200, deadline=None)
@given(block=blocks_of_32)
def test_mx_follows_the_specification(name: str, block: Floats) -> None:
    np.testing.assert_array_equal(quantize_blocks(block, name), np.array(mx_block(name, block), np.float32))


@pytest.mark.parametrize("name", MX)
@settings(max_examples=50, deadline=None)
@given(block=blocks_of_32)
def test_mx_keeps_what_it_made(name: str, block: Floats) -> None:
    once = quantize_blocks(block, name)
    np.testing.assert_array_equal(quantize_blocks(once, name), once)


def nvfp4(x: Floats) -> NDArray[np.float64]:
    """Two-level scaling as arXiv:2509.25149 describes it, block by block."""
    tensor_scale = float(np.float32(float(np.abs(x).max()) / (6 * 448)))
    quantised = []
    for block in x.reshape(-1, 16).astype(np.float64):
        wanted = np.abs(block).max() / 6 / tensor_scale
        scale = float(np.minimum(wanted, 448).astype(ml_dtypes.float8_e4m3fn)) * tensor_scale
        elements = np.clip(block / scale if scale else block * 0, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        quantised.append(elements.astype(np.float64) * scale)
    return np.concatenate(quantised)


@pytest.mark.parametrize("seed", range(5))
def test_nvfp4_follows_its_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(1024) * np.exp2(rng.uniform(-12, 3, 64)).repeat(16)).astype(np.float32)
    np.testing.assert_allclose(quantize_blocks(x, "nvfp4"), nvfp4(x), rtol=1e-7)


def test_nvfp4_blocks_far_below_the_tensor_vanish() -> None:
    x = np.ones(32, np.float32)
    x[16:] *= 2**-19
    assert quantize_blocks(x, "nvfp4")[16:].tolist() == [0.0] * 16
    x[16:] *= 2
    assert (quantize_blocks(x, "nvfp4")[16:] > 0).all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
class TestAnyBlockFormat:
    def test_zeros_stay_zeros(self, name: str) -> None:
        assert quantize_blocks(np.zeros((2, 40), np.float32), name).tolist() == [[0.0] * 40] * 2

    def test_one_broken_value_breaks_its_block_only(self, name: str) -> None:
        size = BLOCK_FORMATS[name].block_size
        for broken in (np.inf, -np.inf, np.nan):
            x = np.ones(2 * size, np.float32)
            x[3] = broken
            got = quantize_blocks(x, name)
            assert np.isnan(got[:size]).all()
            assert np.isfinite(got[size:]).all()

    def test_blocks_run_along_the_axis(self, name: str) -> None:
        x = np.random.default_rng(0).standard_normal((3, 48, 5)).astype(np.float32)
        got = quantize_blocks(x, name, axis=1)
        expected = np.moveaxis(quantize_blocks(np.moveaxis(x, 1, 2), name), 2, 1)
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.float32

    def test_the_last_block_may_be_shorter(self, name: str) -> None:
        x = np.random.default_rng(0).standard_normal(70).astype(np.float32)
        padded = np.concatenate([x, np.zeros(26, np.float32)])
        np.testing.assert_array_equal(quantize_blocks(x, name), quantize_blocks(padded, name)[:70])

    def test_errors_are_within_half_a_step_of_the_largest(self, name: str) -> None:
        x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
        element = BLOCK_FORMATS[name].element
        blocks = x.reshape(64, -1, BLOCK_FORMATS[name].block_size)
        amax = np.abs(blocks).max(axis=-1, keepdims=True)
        # Of the block's largest: half an ulp, and what the scale rounded down cuts off.
        cut = 1 - element.max / 2.0 ** (element.max_exponent + 1)
        error = np.abs(quantize_blocks(x, name).reshape(blocks.shape) - blocks)
        assert (error <= amax * max(element.epsilon / 2, cut) * 1.1).all()

    def test_empty_arrays(self, name: str) -> None:
        assert quantize_blocks(np.zeros((0, 32), np.float32), name).shape == (0, 32)
        assert quantize_blocks(np.zeros((2, 0), np.float32), name).shape == (2, 0)

    def test_tiny_and_huge_values(self, name: str) -> None:
        tiny = np.full(32, 2.0**-149, np.float32)
        huge = np.full(32, np.finfo(np.float32).max, np.float32)
        assert np.isfinite(quantize_blocks(tiny, name)).all()
        np.testing.assert_allclose(quantize_blocks(huge, name), huge, rtol=0.26)


def test_integers_have_no_minus_zero() -> None:
    x = np.array([1.0, -(2.0**-10)], np.float32)
    assert not np.signbit(quantize_blocks(x, "mxint8")).any()
    assert np.signbit(quantize_blocks(x, "mxfp4_e2m1"))[1]


def test_refuses_scalars_and_unknown_names() -> None:
    with pytest.raises(BadInputError, match="axis"):
        quantize_blocks(np.array(1.0, np.float32), "mxfp8_e4m3")
    with pytest.raises(UnknownNameError, match="mxfp4_e2m1"):
        quantize_blocks(np.ones(32, np.float32), "mxfp3")
