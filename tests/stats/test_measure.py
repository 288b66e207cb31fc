# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from floatwise.errors import UnknownNameError
from floatwise.stats import exponent_counts, summarise


def test_counts_what_is_there() -> None:
    x = np.array([[0.0, -0.0, 1e-40, -3.0], [2.5, np.inf, np.nan, -np.inf]], np.float32)
    summary = summarise(x)
    assert (summary.elements, summary.seen, summary.zeros, summary.nonfinite) == (8, 8, 2, 3)
    assert (summary.amax, summary.observations) == (3.0, 1)
    assert summary.signal == pytest.approx(9 + 6.25)
    np.testing.assert_array_equal(summary.counts, exponent_counts(x))


@pytest.mark.parametrize("x", [np.array([], np.float32), np.array([np.nan, np.inf], np.float32)])
def test_nothing_finite(x: np.ndarray) -> None:
    summary = summarise(x)
    assert (summary.amax, summary.zeros, summary.signal, summary.elements) == (0.0, 0, 0.0, x.size)
    assert summary.noise == {"float16": 0.0, "bfloat16": 0.0}


@pytest.mark.parametrize(
    ("name", "decibels"),
    # measured with other implementations' casts on standard normal values
    [("float16", 73.7), ("bfloat16", 55.6), ("float8_e4m3fn", 31.5), ("float8_e5m2", 25.5)],
)
def test_noise_of_normal_values(name: str, decibels: float) -> None:
    x = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    assert summarise(x, [name]).sqnr_db(name) == pytest.approx(decibels, abs=0.2)


def test_noise_saturates_on_overflow() -> None:
    summary = summarise(np.array([1e5, 1.0], np.float32), ["float16", "e4m3"])
    assert summary.noise == {"float16": (1e5 - 65504) ** 2, "float8_e4m3fn": (1e5 - 448) ** 2}


def test_float64_beyond_float32_is_infinite() -> None:
    summary = summarise(np.array([1e300, 1.0]))
    assert (summary.nonfinite, summary.amax) == (1, 1.0)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="bfloat16"):
        summarise(np.ones(2, np.float32), ["bfloat17"])
