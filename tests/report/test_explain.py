# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from floatwise.formats import BLOCK_FORMATS, FORMATS, BlockFormat, Format, format_facts
from floatwise.hardware import DEVICES, device_advice, device_facts
from floatwise.language import Text
from floatwise.report.explain import (
    device_to_json,
    facts_table,
    format_to_json,
    render_device,
    render_format,
)

Printed = Callable[[], str]

_FORMATS: list[Format | BlockFormat] = [FORMATS["float16"], FORMATS["float64"], *BLOCK_FORMATS.values()]


def _squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("fmt", _FORMATS, ids=lambda fmt: fmt.name)
def test_format_page(fmt: Format | BlockFormat, console: Console, printed: Printed) -> None:
    render_format(fmt, console)
    text = printed()
    assert text.startswith(fmt.name)
    assert max(cell_len(line) for line in text.splitlines()) <= console.width
    squeezed = _squeezed(text)
    for said in (fmt.use, fmt.pitfalls):
        assert _squeezed(str(said)) in squeezed
    assert all(value.split()[0] in text for _, value in format_facts(fmt) if value)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("name", ["nvidia-t4", "nvidia-h200", "cpu-avx512-bf16"])
def test_device_page(name: str, console: Console, printed: Printed) -> None:
    device = DEVICES[name]
    render_device(device, console)
    text = printed()
    assert text.startswith(device.name)
    assert max(cell_len(line) for line in text.splitlines()) <= console.width
    assert name in text
    assert all(value.split()[0] in text for _, value in device_facts(device))


def test_facts_without_a_value_are_left_out() -> None:
    assert facts_table([(Text("a", "a"), ""), (Text("b", "b"), "1")]).row_count == 1


@pytest.mark.parametrize("fmt", [*FORMATS.values(), *BLOCK_FORMATS.values()], ids=lambda fmt: fmt.name)
def test_format_json(fmt: Format | BlockFormat) -> None:
    made = format_to_json(fmt)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["name"] == fmt.name
    assert made["max"] == fmt.max


def test_format_json_has_what_follows_from_the_row() -> None:
    made = format_to_json(FORMATS["float16"])
    assert (made["max"], made["smallest_subnormal"], made["epsilon"]) == (65504.0, 2.0**-24, 2.0**-10)
    assert format_to_json(FORMATS["float64"])["overflow_threshold"] is None


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("name", sorted(DEVICES))
def test_device_json(name: str) -> None:
    device = DEVICES[name]
    made = device_to_json(device)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["id"] == name
    assert set(made["matrix"]) == set(device.matrix)
    assert made["advice"] == str(device_advice(device))
