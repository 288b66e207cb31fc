# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from floatwise.hardware import DEVICES, Detected, device_advice
from floatwise.report import info as info_module
from floatwise.report.info import Info, gather_info, info_to_json, render_info

Printed = Callable[[], str]

_T4 = Detected(DEVICES["nvidia-t4"], "Tesla T4", 15 * 2**30, None, "NVIDIA driver")
_UNKNOWN = Detected(None, "Mystery\x1b[2J 9000", None, None, "PCI id 1234:5678")
_CPU = Detected(DEVICES["cpu-avx512-bf16"], "Some CPU", 2**34, 8, "flags")


def _info(*devices: Detected, **packages: str) -> Info:
    return Info("3.11.7", "Linux x86_64", packages, devices)


@pytest.mark.usefixtures("language")
def test_page(console: Console, printed: Printed) -> None:
    render_info(_info(_T4, _CPU, torch="2.13.0"), console)
    text = printed()
    assert max(cell_len(line) for line in text.splitlines()) <= console.width
    joined = "".join(text.split())
    for expected in (
        "TeslaT4",
        "NVIDIAT4",
        "15.0GiB",
        "SomeCPU",
        "torch2.13.0",
        "65TFLOPS",
        "floatwiseplantrain.py",
    ):
        assert expected in joined
    assert "".join(str(device_advice(DEVICES["nvidia-t4"])).split()) in joined
    assert "pip" not in text


@pytest.mark.usefixtures("language")
def test_device_without_a_row_and_no_framework(console: Console, printed: Printed) -> None:
    info = _info(_UNKNOWN, _CPU)
    render_info(info, console)
    text = printed()
    assert "\x1b" not in text
    assert "Mystery\\x1b[2J 9000" in text
    assert "--target" in text
    assert "pip" in text
    assert info_to_json(info)["devices"][0]["device"] is None


@pytest.mark.usefixtures("language")
def test_json() -> None:
    made = info_to_json(_info(_T4, torch="2.13.0"))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert list(made) == ["floatwise", "python", "system", "packages", "devices", "recommendation"]
    assert made["packages"] == {"torch": "2.13.0"}
    assert made["devices"][0]["device"]["id"] == "nvidia-t4"
    assert made["recommendation"] == str(device_advice(DEVICES["nvidia-t4"]))


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_module, "detect", lambda: [_CPU])
    info = gather_info()
    assert info.devices == (_CPU,)
    assert info.packages["numpy"] == importlib.metadata.version("numpy")
    assert "deepspeed-that-nobody-has" not in info.packages


def test_no_framework_is_imported() -> None:
    code = (
        "import sys; from floatwise.report import gather_info; gather_info(); "
        "print({'torch', 'keras', 'jax', 'transformers'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
