# SPDX-License-Identifier: Apache-2.0
"""The compiled kernel: built once, kept where nobody else can write, and never a reason to fail."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from floatwise.torch.masters import compiled, split
from floatwise.torch.masters.compiled import cache_folder, load_compiled
from floatwise.torch.masters.kernel import Kernel, load_kernel

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small C file, and an empty cache folder for what is compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    path = tmp_path / "small.c"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was compiled, as it is."""
    done: list[object] = []
    original = compiled._compile

    def counted(*args: object) -> None:
        done.append(args)
        original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(compiled, "_compile", counted)
    return done


def answer(source: Path) -> int | None:
    library = load_compiled(source)
    return None if library is None else library.answer()


def kept() -> list[Path]:
    return sorted(cache_folder().glob("*.so"))


def test_it_is_compiled_once(source: Path, compilations: list[object]) -> None:
    assert answer(source) == 42
    assert len(compilations) == len(kept()) == 1
    assert answer(source) == 42
    assert len(compilations) == 1


def test_what_is_kept_is_the_users_alone(source: Path) -> None:
    cache_folder().parent.parent.mkdir()
    previous = os.umask(0)
    try:
        answer(source)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(kept()[0].stat().st_mode) & 0o077 == 0


def test_another_source_is_another_library(source: Path) -> None:
    answer(source)
    source.write_text(SOURCE.replace("42", "43"))
    assert answer(source) == 43
    assert len(kept()) == 2


def _truncated(library: Path) -> None:
    library.write_bytes(library.read_bytes()[:2000])


def _changed(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)


def _empty(library: Path) -> None:
    library.write_bytes(b"")


def _a_folder(library: Path) -> None:
    library.unlink()
    library.mkdir()


@pytest.mark.parametrize("damage", [_truncated, _changed, _empty])
def test_a_damaged_library_is_compiled_anew(
    source: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(source)
    whole = kept()[0].read_bytes()
    original = ctypes.CDLL

    def load(name: str) -> object:
        # Loading half a library may end the process.
        assert Path(name).read_bytes() == whole
        return original(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    damage(kept()[0])
    assert answer(source) == 42
    assert [library.read_bytes() for library in kept()] == [whole]


def test_something_else_under_the_librarys_name(source: Path) -> None:
    answer(source)
    _a_folder(kept()[0])
    assert answer(source) == 42


def test_a_library_that_others_may_write_to_is_not_loaded(source: Path, compilations: list[object]) -> None:
    answer(source)
    kept()[0].chmod(0o722)
    assert answer(source) == 42
    assert len(compilations) == 2


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(source: Path, compilations: list[object], mode: int) -> None:
    answer(source)
    cache_folder().chmod(mode)
    for _ in range(2):
        assert answer(source) == 42
    assert len(compilations) == 3
    assert len(kept()) == 1


def test_nor_one_below_a_folder_that_lets_everyone_move_it(source: Path, compilations: list[object]) -> None:
    answer(source)
    cache_folder().parent.chmod(0o777)
    assert answer(source) == 42
    assert len(compilations) == 2
    cache_folder().parent.chmod(0o1777)  # as /tmp: everyone moves their own only
    assert answer(source) == 42
    assert len(compilations) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to somebody else")
def test_nor_somebody_elses(source: Path, compilations: list[object]) -> None:
    answer(source)
    os.chown(cache_folder(), 12345, 12345)
    assert answer(source) == 42
    assert len(compilations) == 2
    os.chown(cache_folder(), 0, 0)
    os.chown(kept()[0], 12345, 12345)
    assert answer(source) == 42
    assert len(compilations) == 3


def test_without_a_folder_to_keep_it_in(source: Path, tmp_path: Path, compilations: list[object]) -> None:
    (tmp_path / "cache").write_text("a file, where a folder should be")
    assert answer(source) == 42
    assert len(compilations) == 1


def test_without_a_home_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert answer(source) == 42


def test_a_cache_folder_that_is_relative_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "floatwise" / "compiled"


@pytest.mark.parametrize(
    "compiler",
    ["no-such-compiler", "false", "true", "cc --no-such-option", "'", "sleep 30"],
    ids=["missing", "failing", "idle", "failing by its options", "no command", "hanging"],
)
def test_without_a_working_compiler(source: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_COMPILE_SECONDS", 0.2)
    monkeypatch.setenv("CC", compiler)
    assert answer(source) is None
    assert kept() == []


def test_a_kept_library_needs_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(source)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert answer(source) == 42


def test_the_compiler_may_have_options(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -DANSWER=1")
    assert answer(source) == 42


def test_what_does_not_compile_with_some_options_is_tried_with_others(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_OPTIONS", (("-no-such-option",), ("-O2",)))
    assert answer(source) == 42


def test_two_processes_at_once(source: Path) -> None:
    # Without PyTorch, of which it needs the version only: importing it takes seconds.
    code = (
        "import importlib.util, pathlib, sys, types\n"
        "sys.modules['torch'] = types.SimpleNamespace(__version__='2.6')\n"
        f"spec = importlib.util.spec_from_file_location('compiled', {compiled.__file__!r})\n"
        "compiled = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(compiled)\n"
        f"print(compiled.load_compiled(pathlib.Path({str(source)!r})).answer())\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0] for process in running] == [b"42\n"] * 2
    assert [process.returncode for process in running] == [0, 0]
    assert len(kept()) == 1


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATWISE_KERNEL", "0")
    assert load_kernel() is None


def test_a_kernel_that_disagrees_with_pytorch_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOATWISE_KERNEL", raising=False)
    choose = split.kernel_in_use.__wrapped__
    assert choose() is not None
    for name in ("split", "join", "widen"):
        with monkeypatch.context() as patch:
            patch.setattr(Kernel, name, lambda *_: None)
            assert choose() is None
