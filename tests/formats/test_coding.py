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
from floatwise.formats import FORMATS, Format, decode, encode, round_to_format

Floats = NDArray[np.float32]
Patterns = Callable[[Format], st.SearchStrategy[Floats]]

UP_TO_16_BITS = [name for name, row in FORMATS.items() if row.bits <= 16]


def oracle_dtype(name: str) -> Any:
    return np.float16 if name == "float16" else getattr(ml_dtypes, name)


def all_codes(name: str) -> NDArray[Any]:
    bits = FORMATS[name].bits
    return np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)


@pytest.mark.parametrize("name", UP_TO_16_BITS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the oracle warns of signalling NaNs
def test_decodes_all_codes_as_the_oracle_does(name: str) -> None:
    codes = all_codes(name)
    expected = codes.view(oracle_dtype(name)).astype(np.float32)
    got = decode(codes, name)
    lost = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), lost)
    np.testing.assert_array_equal(got[~lost].view(np.uint32), expected[~lost].view(np.uint32))
    np.testing.assert_array_equal(np.signbit(got[lost]), np.signbit(expected[lost]))


@pytest.mark.parametrize("name", UP_TO_16_BITS)
def test_every_code_but_nan_survives(name: str) -> None:
    codes = all_codes(name)
    values = decode(codes, name)
    held = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values, name)[held], codes[held])
    np.testing.assert_array_equal(round_to_format(values, name)[held], values[held])


@pytest.mark.parametrize("name", UP_TO_16_BITS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the oracle warns of overflow and NaN
@settings(max_examples=64, deadline=None)
@given(data=st.data())
def test_encodes_two_to_the_twenty_patterns_as_the_oracle_does(
    name: str, float32_patterns: Patterns, data: st.DataObject
) -> None:
    x = data.draw(float32_patterns(FORMATS[name]))
    if name == "float16":
        # NumPy keeps the payload of a NaN; the code here is that of the one without.
        x = np.where(np.isnan(x), np.copysign(np.float32(np.nan), x), x)
    codes = encode(x, name)
    np.testing.assert_array_equal(codes, x.astype(oracle_dtype(name)).view(codes.dtype))


@pytest.mark.parametrize("name", ["float32", "tfloat32"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_wide_codes_are_the_upper_bits_of_float32(name: str, float32_patterns: Patterns, data: st.DataObject) -> None:
    values = round_to_format(data.draw(float32_patterns(FORMATS[name])), name)
    values = np.where(np.isnan(values), np.copysign(np.float32(np.nan), values), values)
    codes = encode(values, name)
    np.testing.assert_array_equal(codes, values.view(np.uint32) >> (32 - FORMATS[name].bits))
    np.testing.assert_array_equal(decode(codes, name).view(np.uint32), values.view(np.uint32))


def test_float64_codes_are_its_words() -> None:
    x = np.array([0.1, -0.0, np.inf, 5e-324, -1e300])
    codes = encode(x, "float64")
    assert codes.tolist() == x.view(np.uint64).tolist()
    assert decode(codes, "float64").tolist() == x.tolist()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("float4_e2m1fn", np.uint8), ("bfloat16", np.uint16), ("tfloat32", np.uint32), ("float64", np.uint64)],
)
def test_codes_have_the_smallest_type(name: str, kind: Any) -> None:
    codes = encode(np.ones((2, 3), np.float32), name)
    assert codes.dtype == kind
    assert codes.shape == (2, 3)
    assert decode(codes, name).tolist() == [[1.0] * 3] * 2


def test_refuses_codes_that_do_not_exist() -> None:
    with pytest.raises(BadInputError, match=r"below 2\*\*4"):
        decode(np.array([16], np.uint8), "float4_e2m1fn")
    with pytest.raises(BadInputError, match="int64"):
        decode(np.array([1]), "float16")
    assert decode(np.array([], np.uint8), "float4_e2m1fn").size == 0
