# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from floatwise.hardware import DEVICES, Device, device_advice

every_row = pytest.mark.parametrize("row", DEVICES.values(), ids=lambda row: row.id)


@pytest.mark.parametrize(
    ("id", "begins", "also", "never"),
    [
        ("nvidia-t4", "fp16-mixed", ("Never bfloat16",), ("float8", "TF32", "bf16-mixed")),
        ("nvidia-v100", "fp16-mixed", ("Never bfloat16",), ("float8", "bf16-mixed")),
        ("nvidia-a100", "bf16-mixed", ("TF32", "fp16-mixed runs just as fast"), ("float8",)),
        ("nvidia-h100", "bf16-mixed", ("TF32", "float8", "fp8-tensorwise"), ()),
        ("nvidia-gtx-1660", "Stay in float32: float16 gives wrong", (), ("mixed",)),
        ("nvidia-gtx-1080", "Stay in float32 unless memory", (), ("mixed",)),
        ("nvidia-p100", "fp16-mixed with loss scaling saves memory", (), ("bf16-mixed",)),
        ("amd-mi100", "bf16-mixed", (), ("runs just as fast", "TF32")),
        ("amd-mi300x", "bf16-mixed", ("float8",), ()),
        ("habana-gaudi3", "bf16-mixed", ("TF32",), ("float8",)),  # its float8 is as fast as its bfloat16
        ("google-tpu-v5e", "bf16-mixed", (), ("fp16", "float8")),
        ("google-tpu-v6e", "bf16-mixed", (), ("float8",)),
        ("google-tpu-v7x", "bf16-mixed", ("float8",), ()),
        ("apple-m2", "Stay in float32 unless memory", (), ()),
        ("cpu-avx512", "Stay in float32 unless memory", (), ()),
        ("cpu-amx-bf16", "bf16-mixed", (), ("fp16",)),
    ],
)
def test_advice(id: str, begins: str, also: tuple[str, ...], never: tuple[str, ...]) -> None:
    advice = device_advice(DEVICES[id]).en
    assert advice.startswith(begins)
    assert all(part in advice for part in also)
    assert not any(part in advice for part in never)


@every_row
def test_bf16_is_advised_exactly_where_there_is_a_unit(row: Device) -> None:
    advice = device_advice(row)
    assert advice.en.startswith("bf16-mixed") == row.has_matrix("bfloat16")
    assert advice.zh.startswith("bf16-mixed") == row.has_matrix("bfloat16")


@every_row
def test_both_languages_name_the_same_recipes(row: Device) -> None:
    advice = device_advice(row)
    for recipe in ("fp16-mixed", "bf16-mixed", "fp8-tensorwise"):
        assert (recipe in advice.en) == (recipe in advice.zh)
