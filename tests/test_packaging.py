# SPDX-License-Identifier: Apache-2.0
"""What people install: the wheel, the command that comes with it, and the versions it is tested with."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import floatwise

ROOT = Path(__file__).parents[1]
# Under one name from Python 3.11 on, under the other before.
toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: CPU time in which the version must be told, in seconds: shells and scripts ask for it before anything else.
VERSION_SECONDS = 0.25


def cpu_seconds(command: list[str]) -> float:
    """Returns the user and system time of one run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs the resource usage of one child process")
@pytest.mark.parametrize("command", ["floatwise", "python -m floatwise"])
def test_version_is_told_at_once(command: str) -> None:
    script = Path(sysconfig.get_path("scripts")) / "floatwise"
    start = [str(script)] if command == "floatwise" else [sys.executable, "-m", "floatwise"]
    # The best of a few: the first run may compile, and a busy machine slows any of them.
    assert min(cpu_seconds([*start, "--version"]) for _ in range(5)) <= VERSION_SECONDS


def test_version_is_the_package_s() -> None:
    told = subprocess.run([sys.executable, "-m", "floatwise", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"floatwise {floatwise.__version__}\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Returns a wheel built from this tree, without an index."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


@pytest.mark.slow
def test_wheel_holds_the_whole_package(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {p.relative_to(source).as_posix() for p in (source / "floatwise").rglob("*") if p.is_file()}
    package = {name for name in files if "__pycache__" not in name}
    assert {"floatwise/py.typed", "floatwise/report/templates/report.html.j2"} < package
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == package


@pytest.mark.slow
def test_wheel_carries_its_licence_and_command(wheel: zipfile.ZipFile) -> None:
    info = f"floatwise-{floatwise.__version__}.dist-info"
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "floatwise = floatwise.__main__:main" in wheel.read(f"{info}/entry_points.txt").decode()


@pytest.mark.slow
def test_wheel_needs_no_framework(wheel: zipfile.ZipFile) -> None:
    needed = [line for line in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(names(needed)) == sorted(names(PROJECT["dependencies"]))
    assert not {"torch", "keras", "jax", "transformers"} & set(names(needed))


def test_constraints_pin_everything_that_the_tests_need() -> None:
    pins = constraints()
    extras = PROJECT["optional-dependencies"]
    dev = [
        *PROJECT["dependencies"],
        *extras["dev"],
        *extras["torch"],
        *extras["transformers"],
        *extras["lightning"],
    ]
    assert {name for name in names(dev) if name != "floatwise"} <= set(pins)
    assert pins["torch"] == "torch==2.13.0"


def constraints() -> dict[str, str]:
    """Returns the lines of constraints.txt by name; every one of them is an exact version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.]+(; python_version [<>=]+ '3\.11')?", pin)] == []
    return dict(zip(names(pins), pins, strict=True))


def names(requirements: list[str]) -> list[str]:
    """Returns the normalised names of requirements."""
    found = [re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements]
    return [re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match]
