# SPDX-License-Identifier: Apache-2.0
"""What is said of the formats that a plan's products were really computed in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.planner.recordings import make_recording

from floatwise.hardware import get_device
from floatwise.planner.decide import decide
from floatwise.planner.decision import Measured, ProductFormat, Products
from floatwise.planner.measured import with_known_measurement, with_measured, with_measurement
from floatwise.planner.targets import Target

CPU = get_device("cpu-avx512-bf16")
ALL = {"bfloat16": ProductFormat(6, 1.0)}
NONE = {"float32": ProductFormat(6, 1.0)}
MOST = {"bfloat16": ProductFormat(4, 2 / 3), "float32": ProductFormat(2, 1 / 3)}


def measured(products: Products | None) -> Measured:
    losses = {"planned": (1.0, 0.9), "float32": (1.0, 0.9)}
    rest: tuple[Any, ...] = ((2.0, 2.0), 0.8, None, None, (1.0, 2.0), losses, None, products)
    return Measured("bf16-mixed", CPU.name, 10, 2.0, *rest)


@pytest.mark.parametrize(
    ("products", "said"),
    [
        (None, {}),
        (Products(ALL, ALL, "gpu"), {}),
        (Products(ALL, None, "gpu"), {}),
        (Products(NONE, None, "cpu"), {"no_product_in_format": ("0 %", None)}),
        (Products(ALL, MOST, "cpu"), {"products_widened": ("100 %", "67 %")}),
        (Products(ALL, NONE, "cpu"), {"products_widened": ("100 %", "0 %")}),
    ],
)
def test_products_that_do_not_run_in_the_plans_format_are_found(
    products: Products | None, said: dict[str, tuple[str, str | None]]
) -> None:
    recording = make_recording()
    decision = with_measurement(decide(recording, CPU, True, 20), measured(products), recording, CPU)
    found = {f.reason.code: (f.reason.data.get("asked"), f.reason.data.get("ran")) for f in decision.findings}
    assert {code: data for code, data in found.items() if code in ("no_product_in_format", "products_widened")} == said


def test_products_are_kept_in_the_recording() -> None:
    result = measured(Products(ALL, MOST, "cpu"))
    recording = with_measured(make_recording(), result)
    again = with_known_measurement(decide(recording, CPU, True, 20), recording, Target(CPU, True))
    assert again.measured == result


def test_shares_of_formats_that_do_not_occur_are_zero() -> None:
    products = Products(ALL, None, "cpu")
    assert (products.share("bfloat16"), products.share("float16")) == (1.0, 0.0)
    assert products.share("bfloat16", ran=True) == 0.0


@pytest.mark.parametrize(("ran", "recipe"), [(NONE, "fp32"), (MOST, "bf16-mixed"), (None, "bf16-mixed")])
def test_a_gain_without_a_product_in_the_format_is_chance(ran: dict[str, ProductFormat] | None, recipe: str) -> None:
    recording = make_recording()
    result = replace(measured(Products(ALL, ran, "cpu")), memory_ratio=None)
    decision = with_measurement(decide(recording, CPU, True, 20), result, recording, CPU)
    assert decision.recipe == recipe
    assert (decision.reasons[0].code == "measured_without_products") is (recipe == "fp32")
