# SPDX-License-Identifier: Apache-2.0
"""The recording's file: exact, whole or not at all, and never trusted."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatwise.errors import BadFileError
from floatwise.probe import Recording, Site, Stall, load_recording, save_recording
from floatwise.stats import TensorSummary, summarise


def made(**fields: Any) -> Recording:
    rng = np.random.default_rng(0)
    values = {
        ("fc", "weight"): summarise(rng.standard_normal(100).astype(np.float32)),
        ("fc", "input"): summarise(np.array([1e30, -0.0, np.inf, np.nan, 1e-42], np.float32)),
        ("größe.0:matmul#2", "grad_output"): summarise(np.zeros(3, np.float32)),
    }
    plain: dict[str, Any] = {
        "script": "train.py",
        "arguments": ("--lr", "0.1", "数据"),
        "steps": 3,
        "device": "cpu",
        "parameters": 10**10,
        "parameter_dtype": "float32",
        "optimizers": ("Adam", "SGD"),
        "losses": (0.1, math.nan, math.inf),
        "matrix_share": 1 / 3,
        "sites": (
            Site("fc", "linear", "", True, 3, 4, 5, 6, 240, ("fc.bias", "fc.weight"), ("embed",)),
            Site("", "Net", "", False),
        ),
        "found": (("found_autocast", "train.py:3", "float16"),),
        "summaries": values,
        "stalls": (Stall("fc.weight", 7, {"float16": 1, "bfloat16": 2}),),
        "versions": {"torch": "2.13.0"},
    }
    return Recording(**{**plain, **fields})


def equal(one: Recording, other: Recording) -> bool:
    losses = [(math.isnan(a) and math.isnan(b)) or a == b for a, b in zip(one.losses, other.losses, strict=True)]
    return all(losses) and replace(one, losses=()) == replace(other, losses=())


def test_a_round_trip_is_exact(tmp_path: Path) -> None:
    recording = made()
    save_recording(recording, tmp_path / "a.recording")
    loaded = load_recording(tmp_path / "a.recording")
    assert equal(loaded, recording)
    assert list(loaded.summaries) == list(recording.summaries)
    assert loaded.role("input") == {"fc": recording.summaries["fc", "input"]}
    assert [site.path for site in loaded.matrix_sites] == ["fc"]


def test_a_recording_of_nothing(tmp_path: Path) -> None:
    empty = made(summaries={}, sites=(), found=(), stalls=(), losses=(), optimizers=(), versions={}, arguments=())
    save_recording(empty, str(tmp_path / "a.recording"))
    assert equal(load_recording(str(tmp_path / "a.recording")), empty)


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(0, 2**62), min_size=256, max_size=256),
    amax=st.floats(0, allow_infinity=False, allow_nan=False),
    signal=st.floats(0, allow_infinity=False, allow_nan=False),
    path=st.text(st.characters(codec="utf-8")),
    loss=st.floats(allow_nan=False),
)
def test_any_numbers_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], amax: float, signal: float, path: str, loss: float
) -> None:
    summary = TensorSummary(np.array(counts, np.int64), amax, 10, 1, 2, signal, {"float16": signal}, 3)
    recording = made(summaries={(path, "input"): summary}, losses=(loss,))
    file = tmp_path_factory.mktemp("any") / "a.recording"
    save_recording(recording, file)
    assert equal(load_recording(file), recording)


def test_it_is_a_zip_that_other_tools_can_read_and_holds_no_pickle(tmp_path: Path) -> None:
    save_recording(made(), tmp_path / "a.recording")
    with zipfile.ZipFile(tmp_path / "a.recording") as archive:
        assert sorted(archive.namelist()) == ["counts.npy", "recording.json"]
        assert json.loads(archive.read("recording.json"))["floatwise_recording"] == 1
        counts = np.load(io.BytesIO(archive.read("counts.npy")), allow_pickle=False)
    assert counts.shape == (3, 256)


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.recording"
    save_recording(made(), target)
    before = target.read_bytes()
    with pytest.raises(TypeError):
        save_recording(made(versions={"torch": object()}), target)
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_recording(made(steps=4), target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.recording"], "nothing half-written is left"


def fail(*_: object) -> None:
    raise OSError("disk full")


def test_others_may_read_it_as_any_file(tmp_path: Path) -> None:
    save_recording(made(), tmp_path / "a.recording")
    (tmp_path / "plain").touch()
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a.recording", "plain")]
    assert modes[0] == modes[1]


def rewritten(change: Callable[[dict[str, Any]], object], path: Path) -> None:
    """Saves a recording whose JSON was changed."""
    save_recording(made(), path)
    with zipfile.ZipFile(path) as archive:
        meta, counts = json.loads(archive.read("recording.json")), archive.read("counts.npy")
    new = change(meta)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("recording.json", json.dumps(meta if new is None else new))
        archive.writestr("counts.npy", counts)


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda m: m.update(floatwise_recording=2), "recording version 2; this Floatwise reads versions up to 1"),
    (lambda m: m.update(floatwise_recording="one"), "recording version 'one'"),
    (lambda m: m.pop("floatwise_recording") and None, "recording version None"),
    (lambda m: m.pop("losses") and None, "damaged recording"),
    (lambda m: m.update(surplus=1), "damaged recording"),
    (lambda m: m.update(sites=[{"path": "x"}]), "damaged recording"),
    (lambda m: m.update(sites=3), "damaged recording"),
    (lambda m: m.update(sites=["a"]), "damaged recording"),
    (lambda m: m.update(found=[["a", "b"]]), "damaged recording"),
    (lambda m: m["summaries"].pop() and None, "damaged recording"),
    (lambda m: m["summaries"][0].pop() and None, "damaged recording"),
    (lambda m: m["summaries"][0][2].pop("amax") and None, "damaged recording"),
    (lambda m: m["summaries"][0][2].update(amax="much"), "damaged recording"),
    (lambda m: m.update(stalls=[1]), "damaged recording"),
    (lambda m: [1, 2, 3], "not a Floatwise recording"),
    (lambda m: "text", "not a Floatwise recording"),
    (lambda m: 7, "not a Floatwise recording"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_recording_that_says_something_else(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = tmp_path / "a.recording"
    rewritten(change, path)
    with pytest.raises(BadFileError, match=message) as caught:
        load_recording(path)
    assert str(caught.value).startswith(f"{path}: ")


def foreign_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "x")


def pickled_counts(path: Path) -> None:
    save_recording(made(), path)
    with zipfile.ZipFile(path) as archive:
        meta = archive.read("recording.json")
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("recording.json", meta)
        archive.writestr("counts.npy", buffer.getvalue())


def truncated(path: Path) -> None:
    save_recording(made(), path)
    path.write_bytes(path.read_bytes()[:-100])


UNREADABLE: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: None, "cannot be read: No such file or directory; write one with `floatwise plan SCRIPT`"),
    (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    (lambda path: path.write_bytes(b""), "not a Floatwise recording, or a damaged one"),
    (lambda path: path.write_text("hello"), "not a Floatwise recording"),
    (foreign_zip, "not a Floatwise recording"),
    (pickled_counts, "not a Floatwise recording"),
    (truncated, "not a Floatwise recording"),
]


@pytest.mark.parametrize(("make", "message"), UNREADABLE)
def test_a_file_that_is_no_recording(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "a.recording"
    make(path)
    with pytest.raises(BadFileError) as caught:
        load_recording(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "a.recording"
    save_recording(made(), path)
    return path


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_are_noticed_or_harmless(file: Path, data: st.DataObject) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
    damaged = file.with_name("damaged.recording")
    damaged.write_bytes(content)
    loaded, complaint = loaded_or_complaint(damaged)
    # A byte that nothing reads, of a date or an attribute, may change.
    assert (loaded is not None and equal(loaded, made())) or complaint.startswith(f"{damaged}: ")


def loaded_or_complaint(path: Path) -> tuple[Recording | None, str]:
    try:
        return load_recording(path), ""
    except BadFileError as error:
        return None, str(error)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_noticed(file: Path, share: float) -> None:
    content = file.read_bytes()
    damaged = file.with_name("short.recording")
    damaged.write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadFileError):
        load_recording(damaged)
