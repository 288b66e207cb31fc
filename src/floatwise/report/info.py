# SPDX-License-Identifier: Apache-2.0
"""What `floatwise info` says: the devices of this machine, the frameworks installed, and where to begin."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text as Line

from floatwise._version import __version__
from floatwise.hardware import Detected, detect, device_advice, device_facts
from floatwise.language import Text
from floatwise.report import numbers
from floatwise.report.explain import device_to_json, facts_table
from floatwise.report.plain import plain
from floatwise.report.terminal import WIDEST

__all__ = ["PACKAGES", "Info", "gather_info", "info_to_json", "render_info"]

PACKAGES = (
    "torch",
    "torchao",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch-lightning",
    "deepspeed",
    "transformer-engine",
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "flax",
    "optax",
    "equinox",
    "dm-haiku",
    "ml_dtypes",
    "numpy",
)
"""Distributions that decide about precision, by their names on PyPI."""


@dataclass(frozen=True)
class Info:
    """This machine, as far as precision goes.

    Attributes:
      python: Version of the interpreter.
      system: Operating system and architecture.
      packages: Version of every one of `PACKAGES` that is installed.
      devices: Best first, the CPU last.
    """

    python: str
    system: str
    packages: Mapping[str, str]
    devices: tuple[Detected, ...]


def gather_info() -> Info:
    """Returns what is here; packages are looked up in their metadata and none is imported."""
    return Info(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: version for name in PACKAGES if (version := _version(name))},
        devices=tuple(detect()),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


_DEVICES = Text("Devices", "设备")
_PACKAGES = Text("Packages", "软件包")
_NO_FRAMEWORK = Text(
    "No framework is installed here; floatwise works on PyTorch scripts best: pip install torch",
    "这里没有安装任何框架；floatwise 对 PyTorch 脚本支持最完整：pip install torch",
)
_FRAMEWORKS = frozenset({"torch", "keras", "tensorflow", "tensorflow-cpu", "jax"})
_BEGIN = Text("Where to begin", "从哪里开始")
_DECIDE = Text("Decide by measurement, on your own script:", "用自己的脚本实测后再决定：")


def render_info(info: Info, console: Console) -> None:
    """Prints the devices with what they can do, the packages, and what to try first."""
    width = min(console.width, WIDEST)
    title = f"Floatwise {__version__} · Python {info.python} · {info.system}"
    console.print(Line(plain(title), style="bold"), width=width, highlight=False)
    for heading, parts in _sections(info):
        console.print()
        console.print(Line(str(heading), style="bold"), width=width, highlight=False)
        for part in parts:
            console.print(Padding(part, (0, 0, 0, 2)), width=width, highlight=False)


def _sections(info: Info) -> Iterator[tuple[Text, Sequence[RenderableType]]]:
    yield _DEVICES, [part for detected in info.devices for part in _device(detected)]
    packages = [(Text(name, name), version) for name, version in info.packages.items()]
    missing = [] if _FRAMEWORKS & info.packages.keys() else [Line(str(_NO_FRAMEWORK), style="yellow")]
    yield _PACKAGES, [facts_table(packages), *missing]
    command = Line("floatwise plan train.py", style="cyan")
    yield _BEGIN, [Line(_recommendation(info)), Line(str(_DECIDE)), Padding(command, (0, 0, 0, 2))]


_MEMORY = Text("memory", "内存")
_CORES = Text("cores", "核数")
_HOW = Text("found by", "识别依据")
_UNKNOWN = Text(
    "not in the device table, so nothing is known about its matrix units",
    "设备表中没有该设备，因此无法得知其矩阵单元的能力",
)
_ROW = Text("device", "设备")
# These are said of the machine itself, or in the section about where to begin.
_SAID_ELSEWHERE = frozenset({"name", "kind", "vendor", "memory", "advice", "also called", "source"})


def _device(detected: Detected) -> Iterator[RenderableType]:
    yield Line(plain(detected.reported_name), style="bold cyan")
    here = [
        (_MEMORY, numbers.bytes_text(detected.memory_bytes) if detected.memory_bytes else ""),
        (_CORES, str(detected.cores or "")),
        (_HOW, detected.how),
    ]
    if detected.device is None:
        facts = [(_ROW, str(_UNKNOWN)), *here]
    else:
        known = [fact for fact in device_facts(detected.device) if fact[0].en not in _SAID_ELSEWHERE]
        facts = [(_ROW, detected.device.name), *known, *here]
    yield Padding(facts_table(facts), (0, 0, 0, 2))


_NO_ADVICE = Text(
    "The best device here is not in the device table. Name a similar one with --target.",
    "这里最好的设备不在设备表中。请用 --target 指定一个相近的设备。",
)


def _recommendation(info: Info) -> str:
    best = info.devices[0].device
    return str(_NO_ADVICE if best is None else device_advice(best))


def info_to_json(info: Info) -> dict[str, Any]:
    """Returns the object that `floatwise info --json` prints."""
    return {
        "floatwise": __version__,
        "python": info.python,
        "system": info.system,
        "packages": dict(info.packages),
        "devices": [_device_json(detected) for detected in info.devices],
        "recommendation": _recommendation(info),
    }


def _device_json(detected: Detected) -> dict[str, Any]:
    return {
        "reported_name": detected.reported_name,
        "memory_bytes": detected.memory_bytes,
        "cores": detected.cores,
        "how": detected.how,
        "device": None if detected.device is None else device_to_json(detected.device),
    }
