# SPDX-License-Identifier: Apache-2.0
"""What a row of the frameworks says: its combinations, its files and how its scripts are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floatwise.language import Text
from floatwise.plan import Plan

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = [
    "ONE_PROCESS",
    "PARALLELS",
    "TORCHRUN",
    "ConfigFile",
    "Framework",
    "torchrun_command",
]

PARALLELS: Mapping[str, Text] = {
    "single": Text("one device", "单卡"),
    "ddp": Text("data parallel: a copy of the model on every device", "数据并行：每张卡一份完整模型"),
    "fsdp2": Text(
        "fully sharded: weights, gradients and optimizer states divided", "全分片：权重、梯度和优化器状态都分到各卡"
    ),
    "zero1": Text("ZeRO stage 1: optimizer states divided", "ZeRO 第 1 阶段：优化器状态分到各卡"),
    "zero2": Text("ZeRO stage 2: gradients divided, too", "ZeRO 第 2 阶段：梯度也分到各卡"),
    "zero3": Text("ZeRO stage 3: weights divided, too", "ZeRO 第 3 阶段：权重也分到各卡"),
}
"""The ways of using several devices by name."""

ONE_PROCESS = "[sys.executable]"
"""The launcher of one process, as Python source for `check.py` and `test.py`."""

TORCHRUN = '[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]'
"""The launcher of two processes on this machine, as Python source for `check.py` and `test.py`."""

# What people rent and build: eight devices in a machine at most.
_DEVICES_PER_MACHINE = 8


def torchrun_command(gpus: int, script: str = "train.py") -> str:
    """Returns the command that starts `script` on `gpus` devices: of this machine, or of several beyond eight."""
    if gpus <= _DEVICES_PER_MACHINE:
        return f"torchrun --standalone --nproc-per-node {gpus} {script}"
    nodes = -(-gpus // _DEVICES_PER_MACHINE)
    return (
        f"torchrun --nnodes {nodes} --nproc-per-node {_DEVICES_PER_MACHINE} "
        f"--rdzv-backend c10d --rdzv-endpoint FIRST_MACHINE:29500 {script}"
    )


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A file of the project that one of our exporters writes.

    Attributes:
      name: The file's name in the project.
      system: The exporter's name.
      form: A key of its forms; None for its first.
      options: Its options that differ from their defaults.
      plan: The plan to write; None for the project's.
      wrap: What becomes of the exported text; None to take it as it is.
    """

    name: str
    system: str
    form: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    wrap: Callable[[str], str] | None = None


def _no_notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    return ()


def _no_exception(answers: Answers, choices: Choices) -> Text | None:
    return None


def _torchrun(answers: Answers) -> str:
    return torchrun_command(answers.gpus)


def _torch_launcher(answers: Answers) -> str:
    return ONE_PROCESS if answers.parallel == "single" else TORCHRUN


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework that projects are written for.

    Attributes:
      name: As in `--framework`.
      title: As people write it.
      refused: Why a parallelism is not possible, by its name, or by `backend/parallel`; all others are.
      backends: What it can run on, the default first; empty when there is no choice.
      device_kinds: Kinds of devices (`hardware.Device.kind`) that its scripts run on.
      packages: Requirements, keys of `pins.PINS`.
      templates: Template by output name, beside the common ones.
      configs: What our exporters write.
      launch_one: The command that starts the script in one process.
      launch_many: The command that starts it on `Answers.gpus` devices.
      launcher: Python source of a list: what comes before `train.py` in `check.py` and `test.py`; two processes
        where the project is parallel.
      notes: What to know about hosts and versions, for the README.
      cpu_exception: Why the precision cannot be active on a CPU; None where it is active there.
      file_texts: What the row's own files are, by name, for the README.
      test_steps: How many optimizer steps `test.py` trains.
      runs_under_floatwise: Whether `floatwise plan train.py` and `floatwise run train.py` understand the script.
    """

    name: str
    title: Text
    refused: Mapping[str, Text] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    device_kinds: tuple[str, ...] = ("gpu", "cpu")
    packages: Callable[[Answers], tuple[str, ...]]
    templates: Callable[[Answers, Choices], Mapping[str, str]]
    configs: Callable[[Answers, Choices], tuple[ConfigFile, ...]]
    launch_one: Callable[[Answers], str] = lambda answers: "python train.py"
    launch_many: Callable[[Answers], str] = _torchrun
    launcher: Callable[[Answers], str] = _torch_launcher
    notes: Callable[[Answers, Choices], tuple[Text, ...]] = _no_notes
    cpu_exception: Callable[[Answers, Choices], Text | None] = _no_exception
    file_texts: Mapping[str, Text] = field(default_factory=dict)
    test_steps: int = 40
    runs_under_floatwise: bool = True

    def why_not(self, parallel: str, backend: str = "") -> Text | None:
        """Returns why this parallelism is not possible; None when it is."""
        return self.refused.get(f"{backend}/{parallel}") or self.refused.get(parallel)

    def parallels(self, backend: str = "") -> tuple[str, ...]:
        """Returns the parallelisms that are possible."""
        return tuple(name for name in PARALLELS if self.why_not(name, backend) is None)
