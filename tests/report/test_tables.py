# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from floatwise.report import numbers
from floatwise.report.tables import NumbersTable, evenly


def test_long_lists_are_thinned_evenly_and_keep_both_ends() -> None:
    assert evenly(range(5), 10) == [0, 1, 2, 3, 4]
    assert evenly(range(101), 5) == [0, 25, 50, 75, 100]


@pytest.mark.usefixtures("language")
def test_what_is_left_out_is_said() -> None:
    assert NumbersTable("a", ("b",), ()).note == ""
    assert "7" in NumbersTable("a", ("b",), (), left_out=7).note


@pytest.mark.parametrize(("value", "exponent"), [(65536.0, 16), (3.0, 2), (0.5, -1), (0.0, 0), (float("inf"), 0)])
def test_the_power_of_two_next_to_a_loss_scale(value: float, exponent: int) -> None:
    assert numbers.nearest_log2(value) == exponent
