# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import pickle

import pytest

from floatwise.formats.table import FORMATS
from floatwise.hardware import DEVICES, Device

ROWS = list(DEVICES.values())
NVIDIA = [row for row in ROWS if row.vendor == "nvidia"]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
every_nvidia = pytest.mark.parametrize("row", NVIDIA, ids=lambda row: row.id)


def capability(row: Device) -> tuple[int, int]:
    assert row.compute_capability is not None
    major, minor = row.compute_capability.split(".")
    return int(major), int(minor)


def has_no_matrix_unit(row: Device) -> bool:
    return capability(row) < (7, 0) or row.id.startswith("nvidia-gtx-16")


@every_row
def test_row_is_complete(row: Device) -> None:
    assert DEVICES[row.id] is row
    assert row.id == row.id.casefold()
    assert " " not in row.id
    assert row.id.startswith(f"{row.vendor}-")
    assert row.name.strip()
    assert row.architecture.strip()
    assert row.source.strip()
    assert "http" not in row.source
    assert bool(row.memory_gib) == (row.kind != "cpu")
    assert (row.bandwidth_gb_per_second is None) == (row.kind == "cpu")


@every_row
def test_figures_are_positive_and_finite(row: Device) -> None:
    figures = [*row.vector_tflops.values(), *row.memory_gib]
    figures += [p.peak_tflops for p in row.matrix.values() if p.peak_tflops is not None]
    figures += [row.bandwidth_gb_per_second] if row.bandwidth_gb_per_second is not None else []
    assert all(math.isfinite(f) and f > 0 for f in figures)
    assert all(path.alignment > 0 for path in row.matrix.values())


@every_row
def test_formats_are_those_of_the_format_table(row: Device) -> None:
    known = set(FORMATS)
    assert set(row.matrix) <= known
    assert set(row.vector_tflops) <= known
    assert set(row.unreliable) <= known
    assert {path.accumulate for path in row.matrix.values()} <= known


@every_row
def test_both_languages(row: Device) -> None:
    for text in (*row.unreliable.values(), *([row.notes] if row.notes else [])):
        assert text.en.isascii()
        assert any("\u4e00" <= c <= "\u9fff" for c in text.zh)
        assert text.en.endswith(".")
        assert text.zh.endswith("。")


@every_row
def test_matrix_units_beat_the_vector_rate(row: Device) -> None:
    float32 = row.vector_tflops.get("float32", 0.0)
    for name in ("float16", "bfloat16"):
        peak = row.matrix[name].peak_tflops if name in row.matrix else None
        assert peak is None or peak > float32, name


@every_row
def test_narrower_formats_are_never_slower(row: Device) -> None:
    order = ("float32", "tfloat32", "bfloat16", "float8_e5m2")
    peaks = [row.matrix[f].peak_tflops or 0.0 for f in order if row.has_matrix(f)]
    known = [p for p in peaks if p]
    assert known == sorted(known)


@every_row
def test_cpus_have_no_fixed_peak(row: Device) -> None:
    for path in row.matrix.values():
        if row.kind == "cpu":
            assert path.peak_tflops is None
        else:
            assert path.flops_per_cycle_per_core is None


@every_row
def test_rows_can_be_copied_pickled_and_hashed(row: Device) -> None:
    assert copy.deepcopy(row) == row == pickle.loads(pickle.dumps(row))
    assert {row: 1}[row] == 1
    assert dataclasses.asdict(row)["id"] == row.id


@every_nvidia
def test_float16_units_from_volta(row: Device) -> None:
    assert row.has_matrix("float16") == (not has_no_matrix_unit(row))


@every_nvidia
def test_bfloat16_and_tf32_units_exactly_from_ampere(row: Device) -> None:
    assert row.has_matrix("bfloat16") == (capability(row) >= (8, 0))
    assert row.has_matrix("tfloat32") == (capability(row) >= (8, 0))


@every_nvidia
def test_float8_units_exactly_from_8_9(row: Device) -> None:
    for name in ("float8_e4m3fn", "float8_e5m2"):
        assert row.has_matrix(name) == (capability(row) >= (8, 9))
    assert row.has_matrix("float4_e2m1fn") == (capability(row) >= (10, 0))


@every_nvidia
def test_nvidia_alignment_is_sixteen_bytes(row: Device) -> None:
    bits = {"tfloat32": 32, "float16": 16, "bfloat16": 16, "float4_e2m1fn": 4}
    for name, path in row.matrix.items():
        assert path.alignment * bits.get(name, 8) == 128, name


@every_nvidia
def test_nvidia_rates_double_with_each_halving(row: Device) -> None:
    peaks = [row.matrix[f].peak_tflops for f in ("tfloat32", "bfloat16", "float8_e4m3fn") if f in row.matrix]
    known = [p for p in peaks if p is not None]
    for slower, faster in itertools.pairwise(known):
        assert faster / slower == pytest.approx(2, rel=0.03)


def test_every_gtx_16_says_that_float16_is_unreliable() -> None:
    unreliable = {row.id for row in ROWS if "float16" in row.unreliable}
    assert unreliable == {row.id for row in ROWS if row.id.startswith("nvidia-gtx-16")}
    assert len(unreliable) == 5


@pytest.mark.parametrize(
    ("id", "format", "peak"),
    [
        ("nvidia-v100", "float16", 125),
        ("nvidia-v100-pcie", "float16", 112),
        ("nvidia-t4", "float16", 65),
        ("nvidia-a100", "bfloat16", 312),
        ("nvidia-a100", "tfloat32", 156),
        ("nvidia-h100", "bfloat16", 989.4),
        ("nvidia-h100", "float8_e4m3fn", 1978.9),
        ("nvidia-h200", "bfloat16", 989.4),
        ("nvidia-b200", "bfloat16", 2250),
        ("nvidia-b200", "float8_e4m3fn", 4500),
        ("nvidia-l4", "float16", 121),
        ("nvidia-l40s", "bfloat16", 362.05),
        ("nvidia-rtx-3080", "float16", 59.6),
        ("nvidia-rtx-4090", "bfloat16", 165.2),
        ("nvidia-rtx-4090", "float8_e4m3fn", 330.4),
        ("nvidia-rtx-5090", "bfloat16", 209.6),
        ("amd-mi250", "bfloat16", 362.1),
        ("amd-mi300x", "bfloat16", 1307.4),
        ("amd-mi300x", "float8_e4m3fnuz", 2614.9),
        ("habana-gaudi2", "bfloat16", 432),
        ("habana-gaudi3", "float8_e4m3fn", 1835),
        ("google-tpu-v4", "bfloat16", 275),
        ("google-tpu-v5e", "bfloat16", 197),
        ("google-tpu-v5p", "bfloat16", 459),
        ("google-tpu-v6e", "bfloat16", 918),
    ],
)
def test_peaks_of_the_data_sheets(id: str, format: str, peak: float) -> None:
    assert DEVICES[id].matrix[format].peak_tflops == pytest.approx(peak)


@pytest.mark.parametrize(
    ("id", "format", "expected"),
    [
        ("nvidia-t4", "bfloat16", False),  # torch.cuda.is_bf16_supported() says True
        ("nvidia-v100", "bfloat16", False),
        ("nvidia-gtx-1660", "float16", False),  # same compute capability as a T4
        ("nvidia-a100", "float8_e4m3fn", False),
        ("amd-mi300x", "float8_e4m3fn", False),
        ("amd-mi355x", "float8_e4m3fn", True),
        ("amd-mi355x", "tfloat32", False),
        ("amd-rx-6900-xt", "float16", False),
        ("google-tpu-v5e", "float16", False),
        ("google-tpu-v6e", "float8_e4m3fn", False),
        ("apple-m2", "float16", False),
        ("apple-m2", "bfloat16", False),
        ("cpu-avx512", "bfloat16", False),
        ("cpu-avx512-bf16", "bfloat16", True),
        ("cpu-amx-bf16", "float16", False),
        ("cpu-amx-fp16", "float16", True),
        ("cpu-arm-bf16", "bfloat16", True),
    ],
)
def test_only_hardware_counts(id: str, format: str, expected: bool) -> None:
    assert DEVICES[id].has_matrix(format) is expected
