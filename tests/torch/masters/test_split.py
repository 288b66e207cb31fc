# SPDX-License-Identifier: Apache-2.0
"""A float32 as two halves of 16 bits, by the compiled kernel and by PyTorch's operators: the same bits."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floatwise.torch.masters import kernel_in_use, split
from floatwise.torch.masters.split import join_halves, split_halves, widen

#: Patterns of float32 values, ends of ranges and neighbours of ties among them.
PATTERNS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.builds(lambda upper, lower: (upper << 16) | lower, st.integers(0, 2**16 - 1), st.sampled_from(range(-1, 2))).map(
        lambda bits: (bits + 0x8000) % 2**32
    ),
    st.sampled_from([0, 0x80000000, 1, 0x7F7FFFFF, 0x7F7F8000, 0x7F800000, 0xFF800000, 0x007FFFFF, 0x00800000]),
)
NANS = [0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0xFFC00000, 0xFFFFFFFF, 0xFF800001, 0xFFFF8000, 0x7FBFFFFF]


@pytest.fixture(params=["kernel", "operators"], autouse=True)
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "operators":
        monkeypatch.setattr(split, "kernel_in_use", lambda: None)
    elif kernel_in_use() is None:
        pytest.skip("no C compiler here")


def of_bits(bits: list[int]) -> Tensor:
    return torch.frombuffer(bytearray(struct.pack(f"={len(bits)}I", *bits)), dtype=torch.float32)


def halves(value: Tensor) -> tuple[Tensor, Tensor]:
    high, low = torch.empty_like(value, dtype=torch.bfloat16), torch.empty_like(value, dtype=torch.int16)
    split_halves(value.clone(), high, low)
    return high, low


def joined(high: Tensor, low: Tensor) -> Tensor:
    out = torch.empty_like(high, dtype=torch.float32)
    join_halves(out, high, low)
    return out


@given(st.lists(PATTERNS, min_size=1, max_size=70))
def test_every_number_comes_back_exactly(bits: list[int]) -> None:
    value = of_bits(bits)
    back = joined(*halves(value))
    same = back.view(torch.int32) == value.view(torch.int32)
    assert bool((same | (back.isnan() & value.isnan())).all())


@given(st.lists(PATTERNS, min_size=1, max_size=70))
def test_the_upper_half_is_the_nearest_bfloat16(bits: list[int]) -> None:
    value = of_bits(bits)
    high, low = halves(value)
    even = torch.from_numpy(value.numpy().astype(ml_dtypes.bfloat16).astype(np.float32))
    is_tie = (value.view(torch.int32) & 0xFFFF) == 0x8000
    exact, wide = value.double(), high.double()
    assert torch.equal(wide[~is_tie].nan_to_num(7.0), even[~is_tie].double().nan_to_num(7.0))
    # Of two that are equally near it is the one farther from zero.
    assert bool((wide[is_tie].abs() > exact[is_tie].abs()).logical_or(value[is_tie].isnan()).all())
    assert bool((low[is_tie] == -(2**15)).logical_or(value[is_tie].isnan()).all())


def test_ties_to_even_could_not_be_undone() -> None:
    one = torch.tensor(1.0).view(torch.int32)
    near = (one + torch.arange(-(2**16), 2**16 + 1, dtype=torch.int32)).view(torch.float32)
    assert int((near.bfloat16() == 1.0).sum()) == 2**16 + 1


@pytest.mark.parametrize("bits", NANS)
def test_a_nan_stays_one_in_both_forms(bits: int) -> None:
    high, low = halves(of_bits([bits] * 17))
    assert bool(high.isnan().all())
    assert bool(joined(high, low).isnan().all())


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, -0.0, 3.4028234663852886e38, 1e-45, -1e-45, 5e-41])
def test_ends_of_the_range(value: float) -> None:
    back = joined(*halves(torch.full((17,), value)))
    assert back.tolist() == [torch.tensor(value).item()] * 17
    assert bool((back.signbit() == (math.copysign(1.0, value) < 0)).all())


@given(st.integers(0, 2**16 - 1), st.integers(-(2**15), 2**15 - 1))
def test_a_weight_changed_from_elsewhere_is_that_weight_within_half_a_step(upper: int, lower: int) -> None:
    high = torch.tensor([upper - 2**16 if upper >= 2**15 else upper], dtype=torch.int16).view(torch.bfloat16)
    back = joined(high, torch.tensor([lower], dtype=torch.int16))
    if bool(high.isfinite()):
        half_step = 0.5 * max(2.0 ** (math.frexp(float(high))[1] - 8), 2.0**-133)
        assert abs(float(back) - float(high)) <= half_step
        assert bool(back.signbit() == high.signbit())
    else:
        assert not bool(back.isfinite()) or abs(float(back)) > 3.38e38


def test_a_zero_written_over_a_weight_is_no_nan() -> None:
    high, low = halves(torch.tensor([0.1, -0.1, 0.3, 1.7, -2.3]))
    for zero in (0.0, -0.0):
        back = joined(torch.full_like(high, zero), low)
        assert bool((back.abs() < 1e-40).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@given(bits=st.lists(PATTERNS, min_size=1, max_size=40))
def test_widening_is_exact(dtype: torch.dtype, bits: list[int]) -> None:
    value = of_bits(bits).to(dtype)
    out = torch.empty(value.shape)
    widen(out, value)
    assert torch.equal(out.nan_to_num(7.0), value.float().nan_to_num(7.0))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 33])
def test_nothing_is_written_beside_a_stretch(size: int) -> None:
    value, high, low = torch.full((64,), 1.5), torch.zeros(64).bfloat16(), torch.zeros(64, dtype=torch.int16)
    split_halves(value[5 : 5 + size], high[3 : 3 + size], low[7 : 7 + size])
    assert int((high != 0).sum()) == size
    out = torch.full((64,), 9.0)
    join_halves(out[2 : 2 + size], high[3 : 3 + size], low[7 : 7 + size])
    assert out.tolist() == [9.0] * 2 + [1.5] * size + [9.0] * (62 - size)


def test_several_threads_give_the_same() -> None:
    value = torch.randn(100_003)
    alone = halves(value)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        high, low = halves(value)
        back = joined(high, low)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(high, alone[0])
    assert torch.equal(low, alone[1])
    assert torch.equal(back, value)
