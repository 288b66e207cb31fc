# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from floatwise.errors import UnknownNameError
from floatwise.formats import (
    BLOCK_FORMATS,
    FORMATS,
    BlockFormat,
    Format,
    find_format,
    get_block_format,
    get_format,
)

# max, smallest normal, smallest subnormal, epsilon: as the specifications print them.
SPECIFIED = {
    "float64": (1.7976931348623157e308, 2.0**-1022, 2.0**-1074, 2.0**-52),
    "float32": (3.4028234663852886e38, 2.0**-126, 2.0**-149, 2.0**-23),
    "tfloat32": (3.4011621342146535e38, 2.0**-126, 2.0**-136, 2.0**-10),
    "float16": (65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    "bfloat16": (3.3895313892515355e38, 2.0**-126, 2.0**-133, 2.0**-7),
    "float8_e4m3fn": (448.0, 2.0**-6, 2.0**-9, 0.125),
    "float8_e5m2": (57344.0, 2.0**-14, 2.0**-16, 0.25),
    "float8_e4m3fnuz": (240.0, 2.0**-7, 2.0**-10, 0.125),
    "float8_e5m2fnuz": (57344.0, 2.0**-15, 2.0**-17, 0.25),
    "float8_e8m0fnu": (2.0**127, 2.0**-127, 2.0**-127, 1.0),
    "float6_e2m3fn": (7.5, 1.0, 0.125, 0.125),
    "float6_e3m2fn": (28.0, 0.25, 0.0625, 0.25),
    "float4_e2m1fn": (6.0, 1.0, 0.5, 0.5),
}


def test_every_row_is_specified() -> None:
    assert set(SPECIFIED) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_facts_follow_the_specification(name: str) -> None:
    fmt = FORMATS[name]
    assert (fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, fmt.epsilon) == SPECIFIED[name]
    assert fmt.bits == fmt.signed + fmt.exponent_bits + fmt.mantissa_bits
    assert 2.0**fmt.max_exponent <= fmt.max < 2 * 2.0**fmt.max_exponent or name == "float64"


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "tfloat32"])
def test_facts_are_those_of_finfo(name: str) -> None:
    dtype: Any = getattr(np, name, None) or getattr(ml_dtypes, name)
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    fmt = FORMATS[name]
    assert float(info.max) == fmt.max
    assert float(info.smallest_normal) == fmt.smallest_normal
    assert float(info.smallest_subnormal) == fmt.smallest_subnormal
    assert float(info.eps) == fmt.epsilon


@pytest.mark.parametrize(
    ("name", "flush", "overflow", "inclusive"),
    [
        ("float16", 2.0**-25, 65520.0, True),
        ("bfloat16", 2.0**-134, 2.0**128 * (1 - 2.0**-9), True),
        ("float32", 2.0**-150, 2.0**128 * (1 - 2.0**-25), True),
        ("float8_e4m3fn", 2.0**-10, 464.0, False),
        ("float8_e5m2", 2.0**-17, 61440.0, True),
        ("float8_e4m3fnuz", 2.0**-11, 248.0, True),
        ("float8_e8m0fnu", 0.0, 1.5 * 2.0**127, True),
        ("float4_e2m1fn", 0.25, 7.0, True),
        ("float64", 0.0, math.inf, True),
    ],
)
def test_thresholds(name: str, flush: float, overflow: float, inclusive: bool) -> None:
    fmt = FORMATS[name]
    assert (fmt.flush_threshold, fmt.overflow_threshold) == (flush, overflow)
    assert fmt.overflow_inclusive is inclusive
    assert fmt.overflows(overflow) is (inclusive and name != "float64") or overflow == math.inf
    assert fmt.overflows(math.nextafter(overflow, math.inf)) or overflow == math.inf
    assert not fmt.overflows(math.nextafter(overflow, 0))


@pytest.mark.parametrize(
    ("name", "range_log2", "storage_bytes"),
    [
        ("float16", 39.99930, 2.0),
        ("float8_e8m0fnu", 254.0, 1.0),
        ("tfloat32", 263.99930, 4.0),
        ("float6_e2m3fn", 5.90689, 0.75),
        ("float64", 2098.0, 8.0),
    ],
)
def test_range_and_storage(name: str, range_log2: float, storage_bytes: float) -> None:
    assert FORMATS[name].dynamic_range_log2 == pytest.approx(range_log2, abs=1e-4)
    assert FORMATS[name].storage_bytes == storage_bytes


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_names_and_aliases_find_their_row(fmt: Format) -> None:
    for name in (fmt.name, *fmt.aliases, fmt.name.upper(), f"torch.{fmt.name}"):
        assert get_format(name) is fmt
        assert find_format(name) is fmt
    assert get_format(fmt) is fmt


def test_no_name_means_two_things() -> None:
    rows: list[Format | BlockFormat] = [*FORMATS.values(), *BLOCK_FORMATS.values()]
    names = [name for row in rows for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["bfloat", "fp-16", "fp8", "float8", "", "e4m4"])
def test_unknown_names_suggest_what_is_accepted(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        get_format(name)
    for suggestion in caught.value.nearest:
        assert get_format(suggestion).name == suggestion


def test_plain_fp8_is_told_apart() -> None:
    with pytest.raises(UnknownNameError, match="'e4m3' or 'e5m2'"):
        get_format("fp8")
    assert {get_format("e4m3").name, get_format("e5m2").name} == {"float8_e4m3fn", "float8_e5m2"}


def test_unknown_names_among_both_tables() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_format("nvfp5")
    assert "nvfp4" in caught.value.nearest
    with pytest.raises(UnknownNameError, match="mxfp8_e4m3"):
        get_block_format("float16")


# Elements per block, bits per element with its share of the scale, largest element.
SPECIFIED_BLOCKS = {
    "mxfp8_e4m3": (32, 8.25, 448.0),
    "mxfp8_e5m2": (32, 8.25, 57344.0),
    "mxfp6_e2m3": (32, 6.25, 7.5),
    "mxfp6_e3m2": (32, 6.25, 28.0),
    "mxfp4_e2m1": (32, 4.25, 6.0),
    "mxint8": (32, 8.25, 127 / 64),
    "nvfp4": (16, 4.5, 6.0),
}


def test_every_block_row_is_specified() -> None:
    assert set(SPECIFIED_BLOCKS) == set(BLOCK_FORMATS)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_block_facts_follow_the_specification(name: str) -> None:
    row = get_block_format(name)
    assert (row.block_size, row.bits_per_element, row.element.max) == SPECIFIED_BLOCKS[name]
    assert row.storage_bytes == row.bits_per_element / 8
    assert row.block_range_log2 == row.element.dynamic_range_log2
    assert row.max == row.element.max * row.scale.max
    for alias in (row.name, *row.aliases):
        assert find_format(alias) is get_block_format(alias) is get_block_format(row) is row


def test_rows_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FORMATS["float16"].bias = 14  # type: ignore[misc]
    with pytest.raises(TypeError):
        FORMATS["mine"] = FORMATS["float16"]  # type: ignore[index]
