# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import floatwise.formats as on_numpy
from floatwise.errors import BadInputError, UnknownNameError
from floatwise.formats import FORMATS, Format
from floatwise.formats.torch import round_to_format

Floats = NDArray[np.float32]
Patterns = Callable[[Format], st.SearchStrategy[Floats]]

CAST_BY_TORCH = ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def assert_same_values(got: torch.Tensor, expected: Any) -> None:
    """Equal bit for bit; any NaN equals any other."""
    lost = np.isnan(expected)
    values = got.numpy()
    np.testing.assert_array_equal(np.isnan(values), lost)
    np.testing.assert_array_equal(values[~lost].view(np.uint32), expected[~lost].view(np.uint32))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "float64"])
@pytest.mark.parametrize("saturate", [None, True])
@settings(max_examples=16, deadline=None)
@given(data=st.data())
def test_rounds_as_numpy_does(
    name: str, saturate: bool | None, float32_patterns: Patterns, data: st.DataObject
) -> None:
    x = data.draw(float32_patterns(FORMATS[name]))
    got = round_to_format(torch.from_numpy(x), name, saturate=saturate)
    assert_same_values(got, on_numpy.round_to_format(x, name, saturate=saturate))


@pytest.mark.parametrize("name", CAST_BY_TORCH)
@settings(max_examples=16, deadline=None)
@given(data=st.data())
def test_rounds_as_torch_does(name: str, float32_patterns: Patterns, data: st.DataObject) -> None:
    x = torch.from_numpy(data.draw(float32_patterns(FORMATS[name])))
    assert_same_values(round_to_format(x, name), x.to(getattr(torch, name)).float().numpy())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_takes_any_floating_type(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-500, 500, 999), torch.tensor([0.0, torch.inf, 1e-5])]).to(dtype)
    wide = x.double().numpy()
    got = round_to_format(x, name)
    expected = on_numpy.round_to_format(wide, name)
    assert got.dtype == (torch.float64 if name == "float64" else torch.float32)
    np.testing.assert_array_equal(got.numpy(), expected)


def test_float64_is_rounded_once() -> None:
    # By way of float32 the last bit is lost, the tie goes to even, and the result is 1.
    x = torch.tensor([1 + 2**-11 + 2**-40], dtype=torch.float64)
    assert round_to_format(x, "float16").item() == 1 + 2**-10


def test_overflow_follows_the_row_not_the_cast() -> None:
    x = torch.tensor([464.0, 465.0, torch.inf, -1e9])
    got = round_to_format(x, "float8_e4m3fn")
    assert got[0] == 448
    assert got[1:].isnan().all()
    assert round_to_format(x, "float8_e4m3fn", saturate=True).tolist() == [448.0, 448.0, 448.0, -448.0]


@pytest.mark.parametrize("name", FORMATS)
def test_stochastic_is_unbiased_between_two_neighbours(name: str) -> None:
    fmt = FORMATS[name]
    step, share, draws = fmt.epsilon, 0.25, 1 << 14
    exact = 1 + share * step
    generator = torch.Generator().manual_seed(0)
    x = torch.full((draws,), exact, dtype=torch.float64)
    got = round_to_format(x, fmt, rounding="stochastic", generator=generator).double()
    if name == "float64":
        assert (got == x).all()
        return
    assert set(got.tolist()) == {1.0, 1.0 + step}
    # Six standard deviations of the mean of as many coin throws.
    assert abs(float(got.mean()) - exact) < 6 * step * (share * (1 - share) / draws) ** 0.5


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "float64"])
def test_stochastic_goes_to_either_neighbour(name: str) -> None:
    fmt = FORMATS[name]
    exponents = torch.linspace(fmt.min_exponent - 1, fmt.max_exponent, 5000, dtype=torch.float64)
    x = exponents.exp2()
    got = round_to_format(x, fmt, rounding="stochastic", generator=torch.Generator().manual_seed(0)).double()
    step = torch.exp2(x.log2().floor().clamp(min=fmt.min_exponent) - fmt.mantissa_bits)
    below, above = (x / step).floor() * step, (x / step).ceil() * step
    below = below if fmt.zero else below.clamp(min=fmt.smallest_normal)
    assert ((got == below) | (got == above)).all()
    assert (got == below).any()
    assert (got == above).any()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "tfloat32"])
def test_stochastic_keeps_representable_values(name: str) -> None:
    fmt = FORMATS[name]
    edges = [0.0, -0.0, fmt.max, -fmt.max, fmt.smallest_subnormal, -fmt.smallest_normal, 1.5]
    x = torch.tensor(edges)
    assert_same_values(round_to_format(x, fmt, rounding="stochastic"), x.numpy())


def test_stochastic_repeats_with_the_same_seed() -> None:
    x = torch.linspace(-1, 1, 1000)
    first, second, other = (
        round_to_format(x, "bfloat16", rounding="stochastic", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert first.equal(second)
    assert not first.equal(other)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_returns_new_values_without_gradient(name: str, rounding: Any) -> None:
    x = torch.full((2, 3), 1.0, requires_grad=True)
    got = round_to_format(x, name, rounding=rounding)
    assert not got.requires_grad
    got.zero_()
    assert (x == 1).all()


@pytest.mark.parametrize("name", FORMATS)
def test_takes_strided_scalar_and_empty_tensors(name: str) -> None:
    x = torch.linspace(0.5, 4.5, 12).reshape(3, 4).t()
    assert round_to_format(x, name).equal(round_to_format(x.contiguous(), name))
    assert round_to_format(torch.tensor(1.0), name).shape == ()
    assert round_to_format(torch.empty(0, 3), name).shape == (0, 3)


def test_refuses_integers_and_unknown_names() -> None:
    with pytest.raises(BadInputError, match=r"torch\.int64"):
        round_to_format(torch.tensor([1]), "float16")
    with pytest.raises(BadInputError, match="nearest_even"):
        round_to_format(torch.ones(1), "float16", rounding="up")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="saturate=False"):
        round_to_format(torch.ones(1), "float4_e2m1fn", saturate=False)
    with pytest.raises(UnknownNameError, match="float16"):
        round_to_format(torch.ones(1), "float17")
