# SPDX-License-Identifier: Apache-2.0
"""The table of products, on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from floatwise.planner.decision import Decision, ProductFormat, Products
from floatwise.report.products import product_note, product_rows

Decide = Callable[..., Decision]
ASKED = {"bfloat16": ProductFormat(12, 0.96), "float32": ProductFormat(2, 0.04)}
RAN = {"bfloat16": ProductFormat(8, 0.7), "float32": ProductFormat(6, 0.3), "float32 × bfloat16": ProductFormat(1, 0.0)}


@pytest.mark.parametrize("ran", [RAN, None])
def test_a_row_for_each_format(ran: dict[str, ProductFormat] | None, decide: Decide) -> None:
    measured = decide().measured
    assert measured is not None
    measured = replace(measured, products=Products(ASKED, ran, "cpu"))
    rows = [(row.format, row.asked, row.ran) for row in product_rows(measured)]
    shares = ("12 (96.0 % of the multiplications)", "2 (4 % of the multiplications)")
    if ran is None:
        assert rows == [("bfloat16", shares[0], ""), ("float32", shares[1], "")]
        assert "compiled" not in product_note(measured)
    else:
        assert rows[0] == ("bfloat16", shares[0], "8 (70.0 % of the multiplications)")
        assert rows[2][:2] == ("float32 × bfloat16", "–")
        assert "compiled for cpu" in product_note(measured)


def test_without_products_there_is_no_table(decide: Decide) -> None:
    assert product_rows(decide().measured) == product_rows(None) == []
