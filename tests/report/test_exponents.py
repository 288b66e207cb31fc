# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import pytest
from tests.report.samples import LAYERS, recording, summary

from floatwise.formats import get_format
from floatwise.planner.decision import LossScaleChoice
from floatwise.report.exponents import MOST_ROWS, RoleExponents, fate, fates, role_exponents
from floatwise.report.figures import exponents_figure
from floatwise.report.figures.exponents import LEAST_SHARE
from floatwise.stats import underflow_share

SCALE = LossScaleChoice((6, 23), 2.0**13, "layers.0")


def _values(role: str = "grad_output", **changes: Any) -> RoleExponents:
    values = role_exponents(recording(**changes), role)
    assert values is not None
    return values


def _traces(values: RoleExponents, kind: str, axis: str, scale: LossScaleChoice | None = None) -> list[Any]:
    data = exponents_figure(values, scale).to_plotly_json()["data"]
    return [trace for trace in data if trace["type"] == kind and trace["yaxis"] == axis]


def test_shares_of_every_row_add_up_to_one() -> None:
    values = _values()
    for row in (values.whole, *values.rows):
        assert row.spread.zero + sum(row.spread.by_exponent) + row.spread.nonfinite == pytest.approx(1)


def test_values_stand_at_their_power_of_two() -> None:
    values = role_exponents(recording(["m"], summaries={("m", "output"): summary({-3: 30, 5: 10}, zeros=60)}), "output")
    assert values is not None
    assert (values.low, values.high) == (-3, 5)
    assert values.whole.spread.zero == 0.6
    assert values.whole.spread.by_exponent == (0.3, *[0.0] * 7, 0.1)


def test_modules_keep_the_order_of_the_model() -> None:
    shuffled = recording(["b", "a", "c.0"])
    summaries = dict(sorted(shuffled.summaries.items()))
    for role in ("output", "weight"):
        values = role_exponents(recording(["b", "a", "c.0"], summaries=summaries), role)
        assert values is not None
        assert [row.name.removesuffix(".weight") for row in values.rows] == ["b", "a", "c.0"]


def test_many_modules_are_folded_and_their_values_merged() -> None:
    paths = [f"layers.{layer}.{part}" for layer in range(40) for part in ("attention", "mlp")]
    values = _values(paths=paths)
    assert [row.name for row in values.rows] == ["layers.{0..39}.attention", "layers.{0..39}.mlp"]
    assert [row.modules for row in values.rows] == [40, 40]
    assert values.rows[0].summary.seen == 40 * 100
    assert sum(row.summary.seen for row in values.rows) == values.whole.summary.seen


@pytest.mark.parametrize("name", ["block_{a}{b}.{c}", "{a}{b}{c}", "x.{a}.y.{b}.z{c}"])
def test_never_more_rows_than_fit_a_screen(name: str) -> None:
    letters = "abcdefghij"
    paths = [name.format(a=a, b=b, c=c) for a in letters for b in letters for c in letters[:5]]
    values = _values(paths=paths)
    assert len(values.rows) <= MOST_ROWS
    assert sum(row.modules for row in values.rows) == 500
    assert sum(row.summary.seen for row in values.rows) == 500 * 100


def test_what_is_too_small_for_the_axis_is_counted_at_its_end() -> None:
    spread = summary({-120: 5, -60: 5, 10: 90})
    values = role_exponents(recording(["m"], summaries={("m", "output"): spread}), "output")
    assert values is not None
    assert values.cut
    assert values.whole.spread.by_exponent[0] == 0.05
    assert sum(values.whole.spread.by_exponent) == pytest.approx(1)


def test_infinities_have_a_column_of_their_own() -> None:
    values = role_exponents(recording(["m"], summaries={("m", "output"): summary({0: 9}, nonfinite=1)}), "output")
    assert values is not None
    assert values.whole.spread.nonfinite == 0.1
    layout = exponents_figure(values, None).to_plotly_json()["layout"]
    assert layout["xaxis"]["ticktext"][-1] == "∞"


def test_nothing_seen_gives_nothing() -> None:
    assert role_exponents(recording(), "other") is None
    only_zeros = recording(["m"], summaries={("m", "output"): summary({}, zeros=10)})
    values = role_exponents(only_zeros, "output")
    assert values is not None
    assert values.whole.spread.zero == 1
    exponents_figure(values, None)


@pytest.mark.parametrize("shift", [0, 8, 13])
@pytest.mark.parametrize("exponent", range(-40, 20))
def test_colours_say_what_the_statistics_say(exponent: int, shift: int) -> None:
    flushed = underflow_share(summary({exponent: 1}), "float16", shift)
    assert (fate(get_format("float16"), exponent, shift) == "zero") == (flushed == 1)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(-26, "zero"), (-25, "subnormal"), (-15, "subnormal"), (-14, "normal"), (15, "normal"), (16, "overflow")],
)
def test_fates_in_float16(exponent: int, expected: str) -> None:
    assert fate(get_format("float16"), exponent) == expected


def test_a_loss_scale_moves_fates() -> None:
    assert fates(_values(), 0) == {"already", "zero", "subnormal"}
    assert fates(_values(), 13) == {"already", "subnormal", "normal"}


@pytest.mark.usefixtures("language")
def test_ranges_end_at_the_right_powers_of_two() -> None:
    spans = _traces(_values(), "bar", "y", SCALE)
    ends = {(t["y"][0], round(t["base"][0], 2), round(t["base"][0] + t["x"][0], 2)) for t in spans}
    # 2^e stands half a column left of the bin that begins with it; 65504 is nearly 2^16.
    assert {(1, -24.5, -14.5), (1, -14.5, 15.5)} <= ends
    assert {(2, -37.5, -27.5), (2, -27.5, 2.5)} <= ends
    # Under the largest scale, 2^23, the upper end comes down to 2^-7; under the smallest, 2^6, to 2^10.
    assert (3, -7.5, 9.5) in ends


def test_ends_and_window_are_drawn_through_bars_and_rows() -> None:
    shapes = exponents_figure(_values(), SCALE).to_plotly_json()["layout"]["shapes"]
    window = [shape for shape in shapes if shape["type"] == "rect"]
    assert [(shape["x0"], shape["x1"]) for shape in window] == [(-7.5, 9.5)] * 2
    places = {shape["x0"] for shape in shapes if shape["type"] == "line"}
    assert {-24.5, -14.5, -37.5, -27.5} < places
    assert len(places) == 6


def test_only_gradients_are_scaled() -> None:
    for role in ("output", "weight", "update"):
        shapes = exponents_figure(_values(role), SCALE).to_plotly_json()["layout"]["shapes"]
        assert {shape["x0"] for shape in shapes} == {-24.5, -14.5, math.log2(65504) - 0.5}


@pytest.mark.usefixtures("language")
def test_bars_have_the_shares_of_the_whole_role() -> None:
    values = _values()
    bars = _traces(values, "bar", "y2", SCALE)
    shares = {place: share for trace in bars for place, share in zip(trace["x"], trace["y"], strict=True)}
    assert sum(shares.values()) == pytest.approx(1)
    seen = {e: s for e, s in enumerate(values.whole.spread.by_exponent, values.low) if s}
    assert {place: shares[place] for place in seen} == seen
    assert {trace["marker"]["color"] for trace in bars} == {"var(--held)", "var(--subnormal)", "var(--bar)"}


@pytest.mark.usefixtures("language")
def test_cells_have_a_row_for_each_module() -> None:
    values = _values()
    zeros, powers = _traces(values, "heatmap", "y3")
    assert len(powers["z"]) == len(LAYERS)
    assert powers["x"] == list(range(values.low, values.high + 1))
    assert zeros["customdata"] == [[0.1]] * 4
    row, place = values.rows[1], values.rows[1].spread.by_exponent.index(0.6)
    assert powers["z"][1][place] == round(math.log10(0.6), 2)
    assert [share > 0 for share in row.spread.by_exponent] == [cell is not None for cell in powers["z"][1]]


def test_rare_values_keep_a_colour() -> None:
    rare = recording(["m"], summaries={("m", "output"): summary({0: 200_000, 9: 1})})
    values = role_exponents(rare, "output")
    assert values is not None
    _, powers = _traces(values, "heatmap", "y3")
    assert powers["z"][0][-1] == math.log10(LEAST_SHARE)


def test_heights_follow_the_rows() -> None:
    few, many = (exponents_figure(_values(paths=paths), None).layout.height for paths in (["m"], list("abcdefghij")))
    assert 300 < few < many < 600
