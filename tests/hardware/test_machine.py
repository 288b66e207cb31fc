# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from floatwise.hardware import Machine
from floatwise.hardware.detection import machine as machine_module

HERE = Machine()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_of_a_tool() -> None:
    assert HERE.run_command(python("print('Tesla T4')")) == "Tesla T4\n"


@pytest.mark.parametrize(
    "command",
    [
        ["floatwise-no-such-tool"],
        ["/"],
        python("raise SystemExit(9)"),
        python("print('half an answer'); raise SystemExit(1)"),
    ],
)
def test_missing_and_failing_tools(command: list[str]) -> None:
    assert HERE.run_command(command) is None


def test_a_hanging_tool_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_TIMEOUT_SECONDS", 0.2)
    start = time.monotonic()
    assert HERE.run_command(python("import time; time.sleep(60)")) is None
    assert time.monotonic() - start < 20


def test_a_tool_that_reads_its_input_does_not_wait() -> None:
    assert HERE.run_command(python("import sys; print(repr(sys.stdin.read()))")) == "''\n"


def test_bytes_that_are_not_utf_8() -> None:
    output = HERE.run_command(python("import sys; sys.stdout.buffer.write(bytes([84, 52, 255]))"))
    assert output is not None
    assert output.startswith("T4")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("2", encoding="utf-8")
    (tmp_path / "a").write_bytes(b"\xff1")
    assert HERE.list_paths(f"{tmp_path}/*") == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert HERE.read_file(f"{tmp_path}/b") == "2"
    assert HERE.read_file(f"{tmp_path}/a") == "\ufffd1"
    assert HERE.read_file(f"{tmp_path}/missing") is None
    assert HERE.read_file(str(tmp_path)) is None


def test_hardware_loads_no_framework() -> None:
    loaded = "bool({'torch', 'jax', 'keras', 'tensorflow'} & set(sys.modules))"
    code = f"import sys, floatwise.hardware as h; h.detect(); sys.exit({loaded})"
    assert subprocess.run(python(code), check=False, timeout=120).returncode == 0
