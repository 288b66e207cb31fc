# SPDX-License-Identifier: Apache-2.0
"""The CPU: which instruction sets it has decides its row."""

from __future__ import annotations

import re

from floatwise.hardware.detection.apple import sysctl
from floatwise.hardware.detection.detected import Detected
from floatwise.hardware.detection.machine import Machine
from floatwise.hardware.table import DEVICES

__all__ = ["cpu"]

# Flag as Linux spells it → row, best first.
_X86 = {
    "amx_fp16": "cpu-amx-fp16",
    "amx_bf16": "cpu-amx-bf16",
    "avx512_bf16": "cpu-avx512-bf16",
    "avx512f": "cpu-avx512",
    "avx2": "cpu-avx2",
}
_ARM = {"bf16": "cpu-arm-bf16", "asimd": "cpu-arm-neon"}
_ARM_ARCHITECTURES = frozenset({"arm64", "aarch64"})


def cpu(machine: Machine) -> Detected:
    """Returns the CPU of a machine; there always is one."""
    text = machine.read_file("/proc/cpuinfo")
    if text:
        return _from_cpuinfo(machine, text)
    if machine.system == "Darwin":
        return _from_sysctl(machine)
    # Windows: no file or tool tells the instruction sets, so none is assumed beyond the architecture's own.
    row, how = _row(machine, frozenset()), f"platform.machine() is {machine.architecture}"
    return Detected(DEVICES[row], machine.architecture or "CPU", None, None, how)


def _from_cpuinfo(machine: Machine, text: str) -> Detected:
    flags = frozenset(_field(text, "flags|Features").split())
    row = _row(machine, flags)
    telling = next((flag for flag in (*_X86, *_ARM) if flag in flags), "none that is known")
    name = _field(text, "model name|Model") or machine.architecture
    memory = re.search(r"^MemTotal:\s*(\d+) kB", machine.read_file("/proc/meminfo") or "", re.MULTILINE)
    return Detected(
        DEVICES[row],
        name,
        int(memory[1]) * 1024 if memory else None,
        _cores(text),
        f"/proc/cpuinfo flags: {telling}",
    )


def _from_sysctl(machine: Machine) -> Detected:
    flags = _mac_flags(machine)
    memory, cores = sysctl(machine, "hw.memsize"), sysctl(machine, "hw.physicalcpu")
    return Detected(
        DEVICES[_row(machine, flags)],
        sysctl(machine, "machdep.cpu.brand_string") or machine.architecture,
        int(memory) if memory.isdigit() else None,
        int(cores) if cores.isdigit() else None,
        f"sysctl features: {', '.join(sorted(flags)) or 'none that is known'}",
    )


def _mac_flags(machine: Machine) -> frozenset[str]:
    if machine.architecture in _ARM_ARCHITECTURES:
        has_bf16 = sysctl(machine, "hw.optional.arm.FEAT_BF16") == "1"
        return frozenset({"asimd", "bf16"} if has_bf16 else {"asimd"})
    features = sysctl(machine, "machdep.cpu.leaf7_features").casefold().split()
    return frozenset(features) & _X86.keys()


def _row(machine: Machine, flags: frozenset[str]) -> str:
    arm = machine.architecture.casefold() in _ARM_ARCHITECTURES
    rows = _ARM if arm else _X86
    return next((row for flag, row in rows.items() if flag in flags), _ARM["asimd"] if arm else "cpu-generic")


def _field(text: str, names: str) -> str:
    found = re.search(rf"^(?:{names})\s*:[ \t]*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _cores(text: str) -> int | None:
    places = {
        (_field(block, "physical id"), _field(block, "core id"))
        for block in text.split("\n\n")
        if _field(block, "core id")
    }
    return len(places) or len(re.findall(r"^processor\s*:", text, re.MULTILINE)) or None
