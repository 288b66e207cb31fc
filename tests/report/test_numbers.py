# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.report import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.31, "2.3×"),
        (0.622, "0.62×"),
        (1.0, "1.00×"),
        (1.04, "1.04×"),
        (12.3, "12×"),
        (0.004, "0.004×"),
        (0.0, "0.00×"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_ratio(value: float | None, text: str) -> None:
    assert numbers.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1288490188, "1.2 GiB"),
        (10_960_000_000, "10.2 GiB"),
        (500 * 2**20, "500 MiB"),
        (1024 * 2**20 - 1, "1.0 GiB"),
        (2**70, "1048576 PiB"),
        (None, "–"),
    ],
)
def test_bytes_text(value: int | None, text: str) -> None:
    assert numbers.bytes_text(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.0003, "0.03 %"),
        (0.0268, "2.7 %"),
        (0.123, "12.3 %"),
        (1e-9, "<0.0001 %"),
        (0.99999, ">99.9 %"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_percent(share: float | None, text: str) -> None:
    assert numbers.percent(share) == text


@given(st.floats(0, 1))
def test_only_nothing_is_zero_percent_and_only_all_is_a_hundred(share: float) -> None:
    text = numbers.percent(share)
    assert (text == "0 %") == (share * 100 == 0)
    assert (text == "100 %") == (share * 100 == 100)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8192.0, "2^13"),
        (1.0, "2^0"),
        (0.5, "2^-1"),
        (3.0, "3"),
        (0.0, "0"),
        (math.inf, "∞"),
        (math.nan, "NaN"),
    ],
)
def test_power_of_two(value: float, text: str) -> None:
    assert numbers.power_of_two(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0841, "84.1 ms"),
        (0.9999, "1.00 s"),
        (1.3, "1.30 s"),
        (253e-6, "253 µs"),
        (12e-9, "12.0 ns"),
        (1e-12, "0.00100 ns"),
        (0.0, "0 s"),
        (7200.0, "7200 s"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert numbers.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 K"),
        (124_439_808, "124 M"),
        (999_999, "1.0 M"),
        (7 * 10**9, "7.0 B"),
    ],
)
def test_count(value: int, text: str) -> None:
    assert numbers.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65504"),
        (0.0, "0"),
        (2.118, "2.118"),
        (0.0003, "0.0003"),
        (1.25e-5, "1.25e-5"),
        (3.4e38, "3.40e38"),
        (-71200.0, "-71200"),
        (-math.inf, "-∞"),
        (None, "–"),
    ],
)
def test_quantity(value: float | None, text: str) -> None:
    assert numbers.quantity(value) == text
