# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatwise.errors import BadInputError, UnknownNameError
from floatwise.stats import TensorSummary, summarise

FORMATS = ("float16", "bfloat16", "float8_e4m3fn")

finite = st.floats(0, 1e30)
counted = st.integers(0, 2**50)


@st.composite
def summaries(draw: st.DrawFn) -> TensorSummary:
    sparse = draw(st.dictionaries(st.integers(0, 255), counted, max_size=8))
    counts = np.zeros(256, np.int64)
    for exponent, count in sparse.items():
        counts[exponent] = count
    return TensorSummary(
        counts=counts,
        amax=draw(finite),
        elements=draw(counted),
        zeros=draw(counted),
        nonfinite=draw(counted),
        signal=draw(finite),
        noise=draw(st.dictionaries(st.sampled_from(FORMATS), finite)),
        observations=draw(st.integers(1, 1000)),
    )


def assert_equal_up_to_sums(left: TensorSummary, right: TensorSummary) -> None:
    """Equal, but for the last bits of the float64 sums."""
    assert left.signal == pytest.approx(right.signal, rel=1e-12)
    assert left.noise == pytest.approx(right.noise, rel=1e-12)
    assert dataclasses.replace(left, signal=0, noise={}) == dataclasses.replace(right, signal=0, noise={})


@given(a=summaries(), b=summaries(), c=summaries())
def test_merging_is_associative(a: TensorSummary, b: TensorSummary, c: TensorSummary) -> None:
    assert_equal_up_to_sums((a + b) + c, a + (b + c))


@given(a=summaries(), b=summaries())
def test_merging_is_commutative(a: TensorSummary, b: TensorSummary) -> None:
    assert a + b == b + a == a.merge(b)


@given(summary=summaries())
def test_survives_json_exactly(summary: TensorSummary) -> None:
    assert TensorSummary.from_dict(json.loads(json.dumps(summary.to_dict(), allow_nan=False))) == summary


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 500))
def test_parts_merge_into_the_whole(seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(500) * np.exp2(rng.uniform(-40, 20, 500))).astype(np.float32)
    x[rng.integers(0, 500, 20)] = rng.choice([0.0, -0.0, np.inf, np.nan], 20)
    merged = summarise(x[:cut], FORMATS) + summarise(x[cut:], FORMATS)
    assert merged.observations == 2
    assert_equal_up_to_sums(dataclasses.replace(merged, observations=1), summarise(x, FORMATS))


def test_merging_drops_what_one_side_did_not_measure() -> None:
    x = np.ones(4, np.float32)
    assert set((summarise(x, FORMATS) + summarise(x)).noise) == {"float16", "bfloat16"}


def test_a_summary_is_not_changed_from_outside() -> None:
    counts = np.zeros(256, np.int64)
    noise = {"float16": 1.0}
    summary = TensorSummary(counts, 0.0, 0, 0, 0, 1.0, noise, 1)
    counts[0], noise["float16"] = 5, 5.0
    assert summary.seen == 0
    assert summary.noise == {"float16": 1.0}
    with pytest.raises(ValueError, match="read-only"):
        summary.counts[0] = 1


def test_compares_with_summaries_only() -> None:
    summary = summarise(np.ones(4, np.float32))
    assert summary == summarise(np.ones(4, np.float32))
    assert summary != summarise(np.ones(5, np.float32))
    assert summary != summary.to_dict()


def test_sqnr() -> None:
    summary = summarise(np.array([1.0, 1 + 2**-11], np.float32), ["fp16", "float32"])
    assert summary.sqnr_db("half") == pytest.approx(10 * math.log10((1 + (1 + 2**-11) ** 2) / 2**-22))
    assert summary.sqnr_db("float32") == math.inf
    assert summary.sqnr_db("bfloat16") is None
    assert summarise(np.zeros(4, np.float32)).sqnr_db("float16") is None
    with pytest.raises(UnknownNameError):
        summary.sqnr_db("float17")


@pytest.mark.parametrize(
    "change",
    [
        {"counts": [0] * 255},
        {"counts": [0.5] * 256},
        {"counts": "many"},
        {"amax": "large"},
        {"elements": None},
        {"noise": [1.0]},
        {"noise": {"float16": "loud"}},
        {"surprise": 1},
    ],
)
def test_refuses_what_is_no_summary(change: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        TensorSummary.from_dict({**summarise(np.ones(4, np.float32)).to_dict(), **change})


def test_refuses_a_summary_with_a_part_missing() -> None:
    data = summarise(np.ones(4, np.float32)).to_dict()
    del data["amax"]
    with pytest.raises(BadInputError, match="amax"):
        TensorSummary.from_dict(data)
