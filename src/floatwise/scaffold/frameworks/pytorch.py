# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch: a training loop of one's own, alone, under DDP, or sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ConfigFile, Framework

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["PYTORCH"]

_ZERO = Text(
    "ZeRO is DeepSpeed's: choose --framework deepspeed, trainer or accelerate; FSDP2 does in PyTorch itself what "
    "ZeRO stage 3 does",
    "ZeRO 属于 DeepSpeed：请选择 --framework deepspeed、trainer 或 accelerate；PyTorch 自带的 FSDP2 "
    "与 ZeRO 第 3 阶段作用相同",
)


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    return {
        "train.py": "pytorch/train.py.j2",
        "model.py": "torch/model.py.j2",
        "census.py": "torch/census.py.j2",
        "find_nan.py": "torch/find_nan.py.j2",
    }


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    loop = ConfigFile(name="precision.py", system="torch-amp")
    if answers.parallel != "fsdp2":
        return (loop,)
    sharded = ConfigFile(name="fsdp2_precision.py", system="fsdp2", wrap=_without_scaler)
    return (sharded, loop) if choices.plan.loss_scale is not None else (sharded,)


def _without_scaler(text: str) -> str:
    """Leaves the scaler to `precision.make_scaler`, which makes it for the device that is there."""
    return text.partition("SCALER = ")[0]


PYTORCH = Framework(
    name="pytorch",
    title=Text("PyTorch (a training loop of your own)", "PyTorch（自己的训练循环）"),
    refused={"zero1": _ZERO, "zero2": _ZERO, "zero3": _ZERO},
    packages=lambda answers: ("torch", "numpy"),
    templates=_templates,
    configs=_configs,
    file_texts={
        "precision.py": Text(
            "the plan as code: autocast, the float32 islands, the loss scale",
            "计划对应的代码：autocast、float32 岛、损失缩放",
        ),
        "fsdp2_precision.py": Text("the plan as FSDP2's MixedPrecisionPolicy", "计划对应的 FSDP2 MixedPrecisionPolicy"),
    },
)
