# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatwise.errors import BadInputError
from floatwise.formats import FORMATS, Format, round_to_format

Floats = NDArray[np.float32]
Patterns = Callable[[Format], st.SearchStrategy[Floats]]

NARROW = [name for name in FORMATS if name not in ("float64", "float32", "tfloat32")]
BELOW_FLOAT64 = [name for name in FORMATS if name != "float64"]


def cast_there_and_back(name: str, x: Floats) -> Floats:
    """The oracle: another implementation's cast to the format and back."""
    if name == "float32":
        return x
    if name == "tfloat32":
        words = x.view(np.uint32)
        rounded = ((words + 0xFFF + ((words >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)
        return np.where(np.isnan(x), x, rounded)
    dtype: Any = np.float16 if name == "float16" else getattr(ml_dtypes, name)
    return np.asarray(x.astype(dtype).astype(np.float32))


def assert_same_values(got: Any, expected: Any) -> None:
    """Equal bit for bit; any NaN equals any other."""
    lost = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), lost)
    np.testing.assert_array_equal(got[~lost].view(np.uint32), expected[~lost].view(np.uint32))


@pytest.mark.parametrize("name", BELOW_FLOAT64)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the oracles warn of overflow and NaN
@settings(max_examples=64, deadline=None)
@given(data=st.data())
def test_rounds_two_to_the_twenty_patterns_as_the_oracle_does(
    name: str, float32_patterns: Patterns, data: st.DataObject
) -> None:
    x = data.draw(float32_patterns(FORMATS[name]))
    assert_same_values(round_to_format(x, name), cast_there_and_back(name, x))


@pytest.mark.parametrize("name", NARROW)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_saturating_differs_past_the_maximum_only(name: str, float32_patterns: Patterns, data: st.DataObject) -> None:
    fmt = FORMATS[name]
    x = data.draw(float32_patterns(fmt))
    plain, saturated = round_to_format(x, fmt), round_to_format(x, fmt, saturate=True)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    past = np.array([fmt.overflows(magnitude) for magnitude in np.abs(wide).tolist()])
    past &= np.full(past.shape, fmt.signed) | (wide > 0)
    np.testing.assert_array_equal(saturated[past], np.copysign(fmt.max, wide[past]).astype(np.float32))
    assert_same_values(saturated[~past], plain[~past])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("float16", 65519.99, 65504.0),
        ("float16", 65520.0, np.inf),
        ("float16", 2**-25, 0.0),
        ("float16", 2**-25 * (1 + 2**-23), 2**-24),
        ("float8_e4m3fn", 464.0, 448.0),
        ("float8_e4m3fn", 464.00003, np.nan),
        ("float8_e4m3fn", np.inf, np.nan),
        ("float8_e5m2", 61440.0, np.inf),
        ("float8_e4m3fnuz", 248.0, np.nan),
        ("float8_e4m3fnuz", -0.0, 0.0),
        ("float8_e8m0fnu", 0.0, np.nan),
        ("float8_e8m0fnu", -1.0, np.nan),
        ("float8_e8m0fnu", 2**-140, 2**-127),
        ("float6_e3m2fn", np.inf, 28.0),
        ("float4_e2m1fn", 2.5, 2.0),
        ("float4_e2m1fn", 5.0, 4.0),
        ("float4_e2m1fn", -7.0, -6.0),
    ],
)
def test_edges(name: str, value: float, expected: float) -> None:
    got = round_to_format(np.array([value], np.float32), name)
    assert_same_values(got, np.array([expected], np.float32))


def test_float64_is_rounded_once() -> None:
    # By way of float32 the last bit is lost, the tie goes to even, and the result is 1.
    x = np.array([1 + 2**-11 + 2**-40])
    assert round_to_format(x, "float16")[0] == 1 + 2**-10


def test_float64_keeps_its_type_and_saturates() -> None:
    x = np.array([0.1, -np.inf, 1e300])
    assert round_to_format(x, "float64").tolist() == x.tolist()
    assert round_to_format(x, "float64", saturate=True)[1] == -np.finfo(np.float64).max
    assert round_to_format(x, "float64").dtype == np.float64
    assert round_to_format(x, "float32").tolist() == [np.float32(0.1), -np.inf, np.inf]


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_keeps_shape_and_input(shape: tuple[int, ...], rounding: Any) -> None:
    x = np.full(shape, 0.3, np.float32)
    got = round_to_format(x, "float16", rounding=rounding)
    assert got.shape == shape
    assert got.dtype == np.float32
    assert (x == np.float32(0.3)).all()


@pytest.mark.parametrize("name", BELOW_FLOAT64)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_stochastic_keeps_representable_values(name: str, float32_patterns: Patterns, data: st.DataObject) -> None:
    held = round_to_format(data.draw(float32_patterns(FORMATS[name])), name)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    again = round_to_format(held, name, rounding="stochastic", rng=rng)
    assert_same_values(again, round_to_format(held, name))


def neighbours(fmt: Format, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values of the format just below and above, as its definition has it."""
    exponent = np.maximum(np.frexp(np.abs(x))[1] - 1, fmt.min_exponent)
    step = np.ldexp(1.0, exponent - fmt.mantissa_bits)
    return np.floor(x / step) * step, np.ceil(x / step) * step


def within_range(fmt: Format, seed: int, size: int) -> Floats:
    """Values spread over all binades of the format, and some below its smallest."""
    rng = np.random.default_rng(seed)
    low = max(fmt.min_exponent - fmt.mantissa_bits - 2, -126 if fmt.zero else fmt.min_exponent)
    exponent = rng.uniform(low, np.log2(fmt.max), size)
    sign = rng.choice([-1.0, 1.0], size) if fmt.signed else 1.0
    return (np.exp2(exponent) * sign).astype(np.float32)


@pytest.mark.parametrize("name", BELOW_FLOAT64)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_stochastic_never_leaves_the_two_neighbours(name: str, seed: int) -> None:
    fmt = FORMATS[name]
    x = within_range(fmt, seed, 4096)
    got = round_to_format(x, fmt, rounding="stochastic", saturate=True, rng=np.random.default_rng(seed))
    below, above = neighbours(fmt, x.astype(np.float64))
    assert ((got == below) | (got == above)).all()


@pytest.mark.parametrize("name", NARROW)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_stochastic_is_unbiased(name: str, seed: int) -> None:
    fmt, draws = FORMATS[name], 1 << 12
    x = within_range(fmt, seed, 32)
    repeated = np.repeat(x[:, None], draws, axis=1)
    rng = np.random.default_rng(seed)
    mean = round_to_format(repeated, fmt, rounding="stochastic", rng=rng).astype(np.float64).mean(axis=1)
    below, above = neighbours(fmt, x.astype(np.float64))
    step = np.where(above > below, above - below, 1.0)
    share = (x - below) / step
    # Six standard deviations of a mean of coin throws, and one throw where the chance is tiny.
    allowed = 6 * np.sqrt(share * (1 - share) / draws) + 1 / draws
    assert (np.abs(mean - x) <= allowed * step).all()


def test_stochastic_repeats_with_the_same_seed() -> None:
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    first, second, other = (
        round_to_format(x, "bfloat16", rounding="stochastic", rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
def test_formats_without_nan_cannot_overflow_to_it(name: str) -> None:
    with pytest.raises(BadInputError, match="saturate=False"):
        round_to_format(np.ones(1, np.float32), name, saturate=False)


@pytest.mark.parametrize("saturate", [None, False])
def test_not_saturating_is_what_the_row_says(saturate: bool | None) -> None:
    x = np.array([1e6, -1e6], np.float32)
    assert round_to_format(x, "float8_e5m2", saturate=saturate).tolist() == [np.inf, -np.inf]
    assert np.isnan(round_to_format(x, "float8_e4m3fn", saturate=saturate)).all()


def test_refuses_integers_and_unknown_roundings() -> None:
    with pytest.raises(BadInputError, match="int64"):
        round_to_format(np.array([1]), "float16")
    with pytest.raises(BadInputError, match="nearest_even"):
        round_to_format(np.ones(1), "float16", rounding="up")  # type: ignore[arg-type]
