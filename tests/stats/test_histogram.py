# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from floatwise.stats import exponent_counts

any_float32 = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, max_dims=3), elements=st.integers(0, 2**32 - 1))


def expected_bin(value: float) -> int:
    if not np.isfinite(value):
        return 255
    return max(int(np.frexp(value)[1]) + 126, 0) if value else 0


@given(words=any_float32)
def test_counts_every_value_once_in_its_bin(words: NDArray[np.uint32]) -> None:
    x = words.view(np.float32)
    expected = np.bincount([expected_bin(float(v)) for v in x.reshape(-1)], minlength=256)
    np.testing.assert_array_equal(exponent_counts(x), expected)


def test_bins() -> None:
    x = np.array([0.0, -0.0, 2.0**-149, 2.0**-126, 1.0, -1.9999999, 2.0, 3e38, np.inf, -np.inf, np.nan])
    counts = exponent_counts(x)
    assert {e: int(n) for e, n in enumerate(counts) if n} == {0: 3, 1: 1, 127: 2, 128: 1, 254: 1, 255: 3}
    assert counts.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types_count_as_float32(dtype: Any) -> None:
    x = np.array([0.5, 6e4, -1e-7], dtype)
    np.testing.assert_array_equal(exponent_counts(x), exponent_counts(x.astype(np.float32)))


def test_float64_past_float32_counts_as_infinite() -> None:
    assert exponent_counts(np.array([1e300, -1e300]))[255] == 2


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_chunks_add_up(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(200_001).astype(np.float32)
    np.testing.assert_array_equal(exponent_counts(x), exponent_counts(x[:70_000]) + exponent_counts(x[70_000:]))
    np.testing.assert_array_equal(exponent_counts(x[::-2]), exponent_counts(x[::2]))
