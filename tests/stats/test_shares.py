# SPDX-License-Identifier: Apache-2.0
"""Predictions from summaries against real casts of the same data."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatwise.formats import FORMATS, get_format
from floatwise.stats import TensorSummary, overflow_share, subnormal_share, summarise, underflow_share

Floats = NDArray[np.float32]

CAST: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}


def spread(seed: int, centre_log2: float, deviation_log2: float, size: int = 4096) -> Floats:
    """Values spread like gradients: log-normal, of both signs, with some zeros; no float32 subnormals."""
    rng = np.random.default_rng(seed)
    exponent = np.clip(rng.normal(centre_log2, deviation_log2, size), -125, 127)
    x: Floats = (np.exp2(exponent) * rng.choice([-1.0, 1.0], size)).astype(np.float32)
    x[rng.integers(0, size, size // 10)] = rng.choice([0.0, -0.0], size // 10)
    return x


def cast_scaled(x: Floats, name: str, scale_log2: int) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = (x * np.float32(2.0**scale_log2)).astype(CAST[name]).astype(np.float32)
    return values


@pytest.mark.parametrize("name", CAST)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    centre=st.floats(-30, 15),
    deviation=st.floats(0.1, 8),
    scale_log2=st.integers(-10, 16),
)
def test_underflow_and_subnormals_are_those_of_the_cast(
    name: str, seed: int, centre: float, deviation: float, scale_log2: int
) -> None:
    x = spread(seed, centre, deviation)
    summary, nonzero = summarise(x), x[x != 0]
    lost = cast_scaled(nonzero, name, scale_log2) == 0
    assert underflow_share(summary, name, scale_log2) == pytest.approx(lost.mean(), abs=1e-12)
    below_normal = np.abs(nonzero) * 2.0**scale_log2 < get_format(name).smallest_normal
    expected = (below_normal & ~lost).mean()
    assert subnormal_share(summary, name, scale_log2) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", CAST)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    centre=st.floats(-20, 20),
    deviation=st.floats(1, 8),
    scale_log2=st.integers(-10, 16),
)
def test_overflow_is_near_that_of_the_cast(
    name: str, seed: int, centre: float, deviation: float, scale_log2: int
) -> None:
    x = spread(seed, centre, deviation)
    overflowed = ~np.isfinite(cast_scaled(x, name, scale_log2))
    predicted = overflow_share(summarise(x), name, scale_log2)
    assert (predicted > 0) == overflowed.any()
    # The divided bin holds up to 40 % of the values, of which a quarter at most is misjudged.
    assert predicted == pytest.approx(overflowed.mean(), abs=0.1)


@pytest.mark.parametrize("name", FORMATS)
def test_amax_decides_whether_anything_overflows(name: str) -> None:
    fmt = FORMATS[name]
    if name == "float64":
        assert overflow_share(summarise(np.array([3e38], np.float32)), name, 64) == 0
        return
    # At half the size float32 can hold the neighbours of every threshold.
    edge = np.float32(fmt.overflow_threshold / 2)
    under = np.nextafter(edge, np.float32(0))
    over = edge if fmt.overflow_inclusive else np.nextafter(edge, np.float32(np.inf))
    assert overflow_share(summarise(np.full(8, under)), name, 1) == 0
    assert overflow_share(summarise(np.full(8, over)), name, 1) > 0
    assert overflow_share(summarise(np.full(8, over)), name) == 0


def test_gains_just_below_one_do_not_overflow_at_two_to_the_sixteen() -> None:
    gains = np.full(512, 0.9997, np.float32)
    assert overflow_share(summarise(gains), "float16", 16) == 0
    assert np.isfinite((gains * 2**16).astype(np.float16)).all()


def test_one_overflow_in_many_is_seen() -> None:
    x = np.full(10_000, 40_000.0, np.float32)
    x[0] = 65_520
    assert overflow_share(summarise(x), "float16") == pytest.approx(1e-4)


def test_an_overflow_the_sample_missed_is_seen() -> None:
    sample = summarise(np.ones(10, np.float32))
    whole = TensorSummary(
        counts=sample.counts,
        amax=1e5,
        elements=1000,
        zeros=0,
        nonfinite=0,
        signal=1,
        noise={},
        observations=1,
    )
    assert overflow_share(whole, "float16") == 1e-3


@pytest.mark.parametrize(
    ("name", "scale_log2", "share"),
    [("float16", 0, 1.0), ("bfloat16", 0, 0.0), ("bfloat16", -8, 1.0), ("float16", 120, 0.0)],
)
def test_float32_subnormals_go_with_their_bin(name: str, scale_log2: int, share: float) -> None:
    x = np.full(4, 2.0**-127, np.float32)
    assert underflow_share(summarise(x), name, scale_log2) == share


@pytest.mark.parametrize("x", [[], [0.0, -0.0], [np.nan, np.inf]])
def test_nothing_to_share(x: list[float]) -> None:
    summary = summarise(np.array(x, np.float32))
    for share in (underflow_share, subnormal_share, overflow_share):
        assert share(summary, "float16") == 0.0


def test_zeros_count_for_overflow_only() -> None:
    summary = summarise(np.array([0.0, 0.0, 1e-30, 1e30], np.float32))
    assert underflow_share(summary, "float16") == 0.5
    assert overflow_share(summary, "float16") == 0.25


def test_scale_factors_have_nothing_to_flush() -> None:
    summary = summarise(np.array([1e-38, 1.0], np.float32))
    assert underflow_share(summary, "float8_e8m0fnu", -20) == 0.0
    assert subnormal_share(summary, "float8_e8m0fnu", -20) == 0.0
