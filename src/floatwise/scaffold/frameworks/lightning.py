# SPDX-License-Identifier: Apache-2.0
"""Lightning: a LightningModule and its Trainer, alone, under DDP or FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ConfigFile, Framework
from floatwise.scaffold.own_code import without_own_code

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["LIGHTNING"]

_ZERO = Text(
    "with Lightning choose fsdp2, which divides the same as zero3 and runs on every device; ZeRO is there with "
    "--framework deepspeed, trainer or accelerate",
    "使用 Lightning 时请选择 fsdp2，分片方式与 zero3 相同，且适用于所有设备；ZeRO 可用 --framework deepspeed、trainer "
    "或 accelerate",
)


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    return {
        "train.py": "lightning/train.py.j2",
        "model.py": "torch/model.py.j2",
        "census.py": "torch/census.py.j2",
        "find_nan.py": "torch/find_nan.py.j2",
    }


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    plan = without_own_code(choices.plan, has_own_scale=False)
    return (ConfigFile(name="precision.py", system="lightning", form="python", plan=plan, wrap=_for_any_device),)


def _for_any_device(text: str) -> str:
    """Leaves the accelerator to `train.py`, and gives autocast and the scaler the device that is there."""
    lines = [line for line in text.splitlines(keepends=True) if line.strip() != 'accelerator="gpu",']
    text = "".join(lines)
    if '"cuda"' not in text:
        return text
    head, _, function = text.replace('"cuda"', "DEVICE").partition("\n\ndef ")
    device = 'DEVICE = (torch.accelerator.current_accelerator() or torch.device("cpu")).type\n'
    return f"{head}\n{device}\n\ndef {function}"


LIGHTNING = Framework(
    name="lightning",
    title=Text("Lightning", "Lightning"),
    refused={"zero1": _ZERO, "zero2": _ZERO, "zero3": _ZERO},
    packages=lambda answers: ("torch", "numpy", "lightning"),
    templates=_templates,
    configs=_configs,
    file_texts={
        "precision.py": Text("the plan as arguments of Lightning's Trainer", "计划对应的 Lightning Trainer 参数")
    },
    test_steps=24,
)
