# SPDX-License-Identifier: Apache-2.0
"""A project's data.py: the packaged sets, the user's own, what it says to bad data, and its batches."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from floatwise.scaffold import Answers, choose, render

Load = Callable[[str], ModuleType]


@pytest.fixture
def load_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports data.py of a project for a task."""

    def load(task: str) -> ModuleType:
        answers = Answers(device="a100", task=task, size="tiny", language="en")
        path = tmp_path / f"data_{task}.py"
        path.write_text(render(answers, choose(answers)).files["data.py"], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_packaged_images(load_module: Load) -> None:
    pytest.importorskip("sklearn")
    data = load_module("image").load()
    assert (data.train_x.shape, data.train_x.dtype, data.train_y.dtype) == ((1438, 8, 8, 1), np.float32, np.int64)
    assert (data.eval_x.shape, data.outputs, data.metric) == ((359, 8, 8, 1), 10, "accuracy")
    assert abs(data.train_x.mean()) < 1e-5
    assert data.train_x.std() == pytest.approx(1, abs=1e-5)


def test_packaged_text(load_module: Load) -> None:
    data = load_module("text").load()
    assert (data.train_x.dtype, data.train_x.shape[1], data.outputs, data.metric) == (np.int64, 64, 256, "loss")
    assert np.array_equal(data.train_x[:, 1:], data.train_y[:, :-1])
    assert np.array_equal(data.train_x[1:, 0], data.train_y[:-1, -1])
    assert data.eval_x.max() < 256


def test_packaged_table(load_module: Load) -> None:
    pytest.importorskip("sklearn")
    data = load_module("tabular").load()
    assert (data.train_x.shape, data.outputs, set(data.train_y)) == ((456, 30), 2, {0, 1})


TABLES: list[tuple[str, list[str], int, str]] = [
    ("texts", [f"{i},{i % 7},{'yes' if i % 2 else 'no'}" for i in range(20)], 2, "accuracy"),
    ("whole numbers", [f"{i},{i % 7},{i % 3}" for i in range(20)], 3, "accuracy"),
    ("many whole numbers", [f"{i},{i % 7},{i}" for i in range(40)], 1, "loss"),
    ("values", [f"{i},{i % 7},{i / 3}" for i in range(20)], 1, "loss"),
]


@pytest.mark.parametrize(("name", "rows", "outputs", "metric"), TABLES)
def test_tables_of_ones_own(
    load_module: Load, tmp_path: Path, name: str, rows: list[str], outputs: int, metric: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,target\n" + "\n".join(rows) + "\n\n", encoding="utf-8")
    data = load_module("tabular").load(str(path))
    assert (data.outputs, data.metric, data.train_x.shape[1]) == (outputs, metric, 2)
    assert len(data.train_x) + len(data.eval_x) == len(rows)
    assert np.isfinite(data.train_x).all()


def test_images_of_ones_own(load_module: Load, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2)
    data = load_module("image").load(str(tmp_path / "own.npz"))
    assert (data.train_x.shape, data.train_x.dtype, data.outputs) == ((16, 6, 5, 3), np.float32, 2)


def test_images_in_folders(load_module: Load, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in ("cat", "dog"):
        (tmp_path / "own" / label).mkdir(parents=True)
        for index in range(3):
            image.new("L", (10, 20), index).save(tmp_path / "own" / label / f"{index}.png")
    data = load_module("image").load(str(tmp_path / "own"))
    assert (data.train_x.shape[1:], data.outputs) == ((32, 32, 3), 2)


def test_texts_of_ones_own(load_module: Load, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("精度" * 100, encoding="utf-8")
    (tmp_path / "own" / "b.txt").write_text("plan" * 100, encoding="utf-8")
    data = load_module("text").load(str(tmp_path / "own"))
    assert len(data.train_x) + len(data.eval_x) == (600 + 1 + 400 - 1) // 64


BAD: list[tuple[str, str, bytes, str]] = [
    ("tabular", "a.csv", b"", "expected a header, three rows, two columns at least, with commas"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,,1\n5,6,1\n", "line 3, column 'b': '' is not a finite number"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,nan,1\n5,6,1\n", "line 3, column 'b': 'nan' is not a finite number"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,red,1\n5,6,1\n", "line 3, column 'b': 'red' is not a finite number"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,4\n5,6,1\n", "line 3 has 2 columns, the header 3"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,4,\n5,6,1\n", "line 3: the target '' is missing or not finite"),
    ("tabular", "a.csv", b"a,b,t\n1,2,0\n3,4,0\n5,6,0\n", "every target is '0'; two different ones are needed"),
    ("tabular", "a.csv", b"\xff\xfe\x00", "no table in UTF-8"),
    ("tabular", "missing.csv", b"", "there is no such file"),
    ("text", "a.txt", b"short", "got 5 bytes of text, at least 129 are needed"),
    ("text", "a.txt", b"\xff" * 500, "cannot be read as UTF-8 text"),
    ("text", "missing.txt", b"", "there is no such file or folder"),
    ("image", "a.npz", b"no zip", "expected an .npz file with x and y"),
    ("image", "missing.npz", b"", "there is no such file or folder"),
]


@pytest.mark.parametrize(("task", "name", "content", "said"), BAD, ids=lambda value: str(value)[:40])
def test_bad_files(
    load_module: Load,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    name: str,
    content: bytes,
    said: str,
) -> None:
    if not name.startswith("missing"):
        (tmp_path / name).write_bytes(content)
    refused(load_module(task), tmp_path / name, capsys, said)


def refused(module: ModuleType, path: Path, capsys: pytest.CaptureFixture[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        module.load(str(path))
    assert caught.value.code == 2
    assert f"{path}: {said}" in capsys.readouterr().err


ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({"x": np.zeros((4, 2, 2))}, "expected an .npz file with x and y"),
    ({"x": np.zeros((4, 2)), "y": np.arange(4)}, "expected x (n, height, width, channels), y (n); got (4, 2), (4,)"),
    ({"x": np.zeros((4, 2, 2)), "y": np.arange(3)}, "expected x (n, height, width, channels)"),
    ({"x": np.full((4, 2, 2), np.nan), "y": np.arange(4)}, "x holds NaN or infinity"),
    ({"x": np.zeros((4, 2, 2)), "y": np.zeros(4)}, "all images are of one class; two or more are needed"),
    ({"x": np.zeros((4, 2, 2)), "y": np.array([0, 1, -1, 2])}, "y must hold whole numbers from 0 on"),
    ({"x": np.zeros((4, 2, 2)), "y": np.array([0, 1, 1.5, 2])}, "y must hold whole numbers from 0 on"),
    ({"x": np.zeros((4, 2, 2)), "y": np.array(["a", "b", "c", "d"])}, "y must hold whole numbers from 0 on"),
]


@pytest.mark.parametrize(("arrays", "said"), ARRAYS, ids=lambda value: str(value)[:40] if type(value) is str else "")
def test_bad_arrays(
    load_module: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, Any], said: str
) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    refused(load_module("image"), tmp_path / "own.npz", capsys, said)


def test_a_folder_without_classes(load_module: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own").mkdir()
    refused(load_module("text"), tmp_path / "own", capsys, "there are no .txt files in it")


def test_ranks_share_an_epoch_without_overlap(load_module: Load) -> None:
    module = load_module("text")
    x = np.arange(50)
    data = module.Data(x, x, x, x, outputs=2, metric="loss")
    per_epoch = 50 // (4 * 3)
    seen = [
        np.concatenate([b for b, _ in itertools.islice(module.batches(data, 4, 0, rank, 3), per_epoch)])
        for rank in range(3)
    ]
    everything = np.concatenate(seen)
    assert len(set(everything)) == len(everything) == 48
    second = next(itertools.islice(module.batches(data, 4, 0, 0, 3), per_epoch, None))[0]
    assert not np.array_equal(second, seen[0][:4])  # another epoch, another order


def test_batches_go_on_where_they_stopped(load_module: Load) -> None:
    module = load_module("text")
    x = np.arange(50)
    data = module.Data(x, x, x, x, outputs=2, metric="loss")
    whole = [b for b, _ in itertools.islice(module.batches(data, 8, 5), 20)]
    rest = [b for b, _ in itertools.islice(module.batches(data, 8, 5, start=9), 11)]
    assert np.array_equal(np.stack(whole[9:]), np.stack(rest))


def test_few_examples_are_repeated_to_fill_a_batch(load_module: Load) -> None:
    module = load_module("text")
    x = np.arange(3)
    data = module.Data(x, x, x, x, outputs=2, metric="loss")
    for rank in range(2):
        assert len(next(module.batches(data, 4, 0, rank, 2))[0]) == 4


@pytest.mark.parametrize(("count", "size", "world"), [(10, 4, 1), (11, 4, 2), (359, 32, 2), (7, 1, 3)])
def test_ranks_evaluate_everything_once_in_equally_many_batches(
    load_module: Load, count: int, size: int, world: int
) -> None:
    module = load_module("text")
    x = np.arange(count)
    data = module.Data(x, x, x, x, outputs=2, metric="loss")
    ranks = [[b for b, _ in module.eval_batches(data, size, rank, world)] for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert max(len(b) for batches in ranks for b in batches) <= size
    assert sorted(np.concatenate([b for batches in ranks for b in batches])) == list(range(count))
