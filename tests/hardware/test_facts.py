# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from floatwise.hardware import DEVICES, Device, device_facts

every_row = pytest.mark.parametrize("row", DEVICES.values(), ids=lambda row: row.id)


def facts(id: str) -> dict[str, str]:
    return {label.en: value for label, value in device_facts(DEVICES[id])}


@every_row
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_fact_has_labels_and_a_value(row: Device, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", language)
    listed = device_facts(row)
    for label, value in listed:
        assert label.en
        assert label.zh
        assert value
        assert "{" not in f"{label.en}{label.zh}{value}"
        assert "None" not in value
    labels = [label.en for label, _ in listed]
    assert len(labels) == len(set(labels))
    assert {"name", "id", "kind", "architecture", "advice", "source"} <= set(labels)


@every_row
def test_no_figure_is_left_out(row: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    text = "\n".join(f"{label.en}: {value}" for label, value in device_facts(row))
    assert all(name in text for name in (*row.matrix, *row.vector_tflops, *row.unreliable, row.source))
    figures = [p.peak_tflops for p in row.matrix.values()] + [row.bandwidth_gb_per_second]
    assert all(f"{figure:g}" in text for figure in figures if figure is not None)


def test_values_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "en")
    t4 = facts("nvidia-t4")
    assert t4["float16 matrix unit"] == "65 TFLOPS dense, sums in float32, dimensions in multiples of 8"
    assert t4["memory bandwidth"] == "320 GB/s"
    assert facts("cpu-amx-bf16")["bfloat16 matrix unit"].startswith("1024 operations per cycle and core")
    assert facts("cpu-arm-bf16")["bfloat16 matrix unit"].startswith("peak depends on cores and clock")
    assert facts("apple-m5")["float16 matrix unit"].startswith("peak not published")
    assert facts("apple-m1")["matrix unit"] == "none"
    assert facts("amd-mi355x")["tfloat32, emulated"].endswith("not native, so not faster")
    assert "NaN" in facts("nvidia-gtx-1660")["float16 is unreliable"]


def test_values_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_LANG", "zh")
    assert facts("nvidia-t4")["float16 matrix unit"] == "稠密峰值 65 TFLOPS，以 float32 累加，维度取 8 的倍数"
    assert "不要用 bfloat16" in facts("nvidia-t4")["advice"]
