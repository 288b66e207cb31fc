# SPDX-License-Identifier: Apache-2.0
"""Casts to float8: the values of torchao, of ml_dtypes and of the MX specification, and what they lose."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floatwise.formats import get_format, quantize_blocks
from floatwise.formats.torch import round_to_format
from floatwise.rehearse.float8_cast import CastCounts, CastTally, cast_operand
from floatwise.rehearse.float8_scaling import FLOAT8_SCALINGS

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
DTYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}


def spread_values() -> Tensor:
    """Two rows of 32 values over thirteen powers of two, the same on every machine."""
    i = torch.arange(64)
    return ((i * 37 % 101 - 50).float() / 7 * torch.exp2((i % 13 - 6).float())).reshape(2, 32)


def random_values(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-20, 9, (rows, columns), generator=generator)
    return torch.randn(rows, columns, generator=generator) * torch.exp2(exponents.float())


#: Made by torchao 0.18 of `spread_values()`: `hp_tensor_to_float8_dynamic` and `to_mx`. Codes, one byte each, and
#: scales; those of blocks as they divide. The dimension is the one that shares a scale.
_BY_ROW = (
    "9e9726b39e42c9405ddb62f5eb17a30033b7334dca53e5d871fa0323a6273eb8"
    "45d4c161e95e7c9419aea537c3a152d8526dea739d9128b21943c6465ed965f4"
)
_LAST_COLUMNS = (5, 2, 2, 1, 6, 5, 3, 4, 1, 0, 6, 7, 4, 4, 3, 1)
RECORDED = [
    pytest.param(
        "tensorwise",
        E4M3,
        1,
        "a09828b5a043ca415edd63f7ed19a40034b9354fcb55e6d972fb0425a82840b9"
        "47d5c263ea607e961ab0a638c4a254d9546fec749f9229b31a45c84860da66f6",
        [1.1395349502563477],
        id="tensorwise e4m3",
    ),
    pytest.param(
        "tensorwise",
        E5M2,
        1,
        "ccc850d7cc5ee15d6beb6ef8f348ce0056d85764e267efe975fa3c4fd0505cd9"
        "5fe7dd6df16c7bc749d4cf58decd66e96673f276cbc551d6495ee0606ce96ff7",
        [145.8604736328125],
        id="tensorwise e5m2",
    ),
    pytest.param("rowwise", E4M3, 1, _BY_ROW, [1.0, 1.0], id="rows"),
    pytest.param(
        "rowwise",
        E4M3,
        0,
        "d6bf5ecbae62c9787dfb7afdfb6fcb005bc74355fa7bfdf879fa2e5bc64756c0"
        "7dfcf979f97e7ccc39cebd3fd3f97af87a7dfa7bcdb940d22143f67e7ef97dfc",
        [2.0**n for n in (7, 5, 7, 3, 2, 4, 0, 7, 4, 4, 3, 1, 2, 11, 5, 4, *_LAST_COLUMNS)],
        id="columns",
    ),
    pytest.param("mx", E4M3, 1, _BY_ROW, [1.0, 1.0], id="mx e4m3"),
    pytest.param(
        "mx_wide_gradients",
        E5M2,
        1,
        "cbc74fd6cb5de05c6aea6df7f248cd0055d85663e166eee874f93b4ecf4f5bd8"
        "5fe6dd6df06b7ac649d3ce57ddcd65e86573f175cac550d5495edf5f6be86ef6",
        [128.0, 128.0],
        id="mx e5m2",
    ),
    pytest.param("mx_rceil", E4M3, 1, _BY_ROW, [1.0, 1.0], id="mx rceil"),
]


@pytest.mark.parametrize(("scaling", "fmt", "dim", "codes", "scales"), RECORDED)
def test_casts_are_those_recorded_from_torchao(
    scaling: str, fmt: str, dim: int, codes: str, scales: list[float]
) -> None:
    stored = torch.tensor(list(bytes.fromhex(codes)), dtype=torch.uint8).view(DTYPES[fmt]).float().reshape(2, 32)
    scale = torch.tensor(scales, dtype=torch.float32).reshape(-1, 1)
    expected = stored / (scale.t() if dim == 0 else scale)
    assert torch.equal(cast_operand(spread_values(), get_format(fmt), FLOAT8_SCALINGS[scaling], dim), expected)


@pytest.mark.parametrize("fmt", [E4M3, E5M2, "float8_e4m3fnuz", "float8_e5m2fnuz"])
@given(values=st.lists(st.floats(-(2.0**30), 2.0**30, width=32), min_size=1, max_size=24))
def test_rounding_is_that_of_ml_dtypes(fmt: str, values: list[float]) -> None:
    row = get_format(fmt)
    x = torch.tensor([values], dtype=torch.float32)
    scale = np.float32(row.max / max(float(x.double().abs().max()), 1e-12))
    scaled = x.numpy() * scale
    stored = np.clip(scaled, -row.max, row.max).astype(getattr(ml_dtypes, fmt)).astype(np.float32)
    cast = cast_operand(x, row, FLOAT8_SCALINGS["tensorwise"], 1)
    np.testing.assert_array_equal(cast.numpy(), stored / scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (40, 70), (3, 5)])
@pytest.mark.parametrize(("scaling", "fmt"), [("mx", E4M3), ("mx_wide_gradients", E5M2)])
def test_blocks_are_those_of_the_formats(
    scaling: str, fmt: str, rows: int, columns: int, dim: int, dtype: torch.dtype
) -> None:
    x = random_values(rows, columns).to(dtype)
    x[0, :2] = 0
    expected = quantize_blocks(x.float().numpy(), "mxfp8_e4m3" if fmt == E4M3 else "mxfp8_e5m2", axis=dim)
    np.testing.assert_array_equal(cast_operand(x, get_format(fmt), FLOAT8_SCALINGS[scaling], dim).numpy(), expected)


def test_a_block_scale_rounded_up_cuts_nothing() -> None:
    x = torch.full((1, 32), 500.0)
    floor, rceil = (cast_operand(x, get_format(E4M3), FLOAT8_SCALINGS[name], 1) for name in ("mx", "mx_rceil"))
    assert floor.unique().tolist() == [448.0]
    assert rceil.unique().tolist() == [512.0]


@pytest.mark.parametrize(("scaling", "power"), [("rowwise", True), ("tensorwise", False)])
def test_scales_take_amax_to_the_largest_value(scaling: str, power: bool) -> None:
    x = random_values(16, 32)
    cast = cast_operand(x, get_format(E4M3), FLOAT8_SCALINGS[scaling], 1)
    amax, kept = x.abs().amax(1), cast.abs().amax(1)
    if power:  # every row keeps its own largest value to half a step
        assert bool(((kept - amax).abs() <= amax / 16).all())
    else:  # exactly, up to a rounding of the scale
        torch.testing.assert_close(kept.max(), amax.max(), rtol=2**-22, atol=0)


@pytest.mark.parametrize("scaling", FLOAT8_SCALINGS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_does_not_become_finite(scaling: str, bad: float) -> None:
    x = torch.ones(2, 64)
    x[0, 3] = bad
    tally = CastTally()
    cast = cast_operand(x, get_format(E4M3), FLOAT8_SCALINGS[scaling], 1, tally)
    assert bool(cast[0, 3].isnan())
    assert tally.counts().nonfinite_casts == 1
    own_scales = FLOAT8_SCALINGS[scaling].granularity != "tensorwise"
    assert bool(cast[1].isfinite().all()) is own_scales


def test_zeros_stay_zeros() -> None:
    for scaling in FLOAT8_SCALINGS.values():
        assert not cast_operand(torch.zeros(2, 32), get_format(E4M3), scaling, 1).any()


def test_losses_are_counted_before_the_cast() -> None:
    mx, tally = FLOAT8_SCALINGS["mx"], CastTally()
    x = torch.ones(1, 32)
    # The block's scale is 1: 464 is a tie that rounds to 448, 465 would round past it; 2^-10 is a tie, too.
    x[0, :6] = torch.tensor([-511.0, 465.0, 464.0, 2**-10, -(2**-11), 0.0])
    cast = cast_operand(x, get_format(E4M3), mx, 1, tally)
    assert cast[0, :6].tolist() == [-448.0, 448.0, 448.0, 0.0, 0.0, 0.0]
    counts = tally.counts()
    assert counts == CastCounts(1, 32, zeros=1, underflowed=2, overflowed=2, nonfinite_casts=0, amax=511.0)
    assert (counts.underflow_share, counts.overflow_share) == (2 / 31, 2 / 31)


def test_counts_add_up_over_casts() -> None:
    tally = CastTally()
    for seed in range(3):
        x = random_values(8, 32, seed)
        cast_operand(x, get_format(E4M3), FLOAT8_SCALINGS["tensorwise"], 1, tally)
    counts = tally.counts()
    scaled = [random_values(8, 32, s) for s in range(3)]
    lost = sum(int((round_to_format(x * (448 / x.abs().max()), E4M3, saturate=True) == 0).sum()) for x in scaled)
    assert (counts.casts, counts.elements, counts.underflowed) == (3, 3 * 8 * 32, lost)
    assert counts.amax == max(float(x.abs().max()) for x in scaled)
    assert counts.to_json()["underflow_share"] == counts.underflow_share


def test_of_large_tensors_every_few_rows_are_counted() -> None:
    tally = CastTally()
    x = torch.ones(4096, 64)
    x[::2] = 2.0**-20
    x[7, 7] = 3.0
    cast_operand(x, get_format(E4M3), FLOAT8_SCALINGS["tensorwise"], 1, tally)
    counts = tally.counts()
    assert 2**15 < counts.elements < 2**17
    assert counts.underflow_share == pytest.approx(0.5, abs=0.01)  # whatever the rows' own period
    assert counts.amax == 3.0


def test_no_cast_lost_nothing() -> None:
    assert CastTally().counts() == CastCounts()
    assert CastCounts().underflow_share == 0.0


def test_the_operand_itself_is_left_alone() -> None:
    for scaling in FLOAT8_SCALINGS.values():
        x = random_values(32, 32)
        before = x.clone()
        cast_operand(x, get_format(E4M3), scaling, 0, CastTally())
        assert torch.equal(x, before)
