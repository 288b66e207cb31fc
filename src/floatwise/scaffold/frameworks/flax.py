# SPDX-License-Identifier: Apache-2.0
"""Flax NNX and Optax on JAX: one device, data parallel, or with the state divided among devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ONE_PROCESS, ConfigFile, Framework

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["FLAX"]

_ZERO = Text(
    "ZeRO is DeepSpeed's; fsdp2 divides weights, gradients and optimizer states among devices here",
    "ZeRO 属于 DeepSpeed；这里用 fsdp2 把权重、梯度和优化器状态分到各设备",
)


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    return {
        "train.py": "flax/train.py.j2",
        "step.py": "flax/step.py.j2",
        "model.py": "flax/model.py.j2",
        "census.py": "flax/census.py.j2",
        "find_nan.py": "flax/find_nan.py.j2",
    }


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    return (ConfigFile(name="precision.py", system="jax"),)


def _notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    notes = [
        Text(
            "XLA decides what runs: `train.py` prints the formats that products were asked for in and those of the "
            "compiled program where they differ. On CPUs nearly all 16-bit products are computed in float32, which "
            "costs time and gains none.",
            "实际执行的格式由 XLA 决定：若编译后的程序与要求的格式不同，`train.py` 会同时打印两者。"
            "在 CPU 上几乎所有 16 位乘法都以 float32 计算，因此只会更慢，没有收益。",
        )
    ]
    if answers.parallel != "single":
        notes.append(
            Text(
                "One process uses all devices: `DEVICES` in `train.py` says how many, CUDA_VISIBLE_DEVICES which. "
                "Without a GPU the CPU is divided into as many. `reductions` in the report are the formats of sums "
                "over devices.",
                "单个进程使用全部设备：数量见 `train.py` 中的 `DEVICES`，用 CUDA_VISIBLE_DEVICES 选择。"
                "没有 GPU 时把 CPU 划分成同样数量的设备。报告中的 `reductions` 是跨设备求和的格式。",
            )
        )
    if choices.plan.loss_scale is not None:
        notes.append(
            Text(
                "With `--accumulate`, a micro-batch that overflows is left out, and the optimizer waits for one more.",
                "使用 `--accumulate` 时，溢出的微批被舍弃，优化器会多等一个微批。",
            )
        )
    return tuple(notes)


FLAX = Framework(
    name="flax",
    title=Text("Flax NNX on JAX", "JAX 上的 Flax NNX"),
    refused={"zero1": _ZERO, "zero2": _ZERO, "zero3": _ZERO},
    device_kinds=("gpu", "cpu", "tpu"),
    packages=lambda answers: ("jax", "flax", "optax", "orbax-checkpoint", "numpy"),
    templates=_templates,
    configs=_configs,
    launch_many=lambda answers: "python train.py",
    launcher=lambda answers: ONE_PROCESS,
    notes=_notes,
    file_texts={
        "step.py": Text("the training step: gradients, loss scale, update", "训练步：梯度、损失缩放、更新"),
        "precision.py": Text(
            "the plan as dtypes of Flax modules and loss scale", "计划对应的 Flax 模块 dtype 和损失缩放"
        ),
    },
    runs_under_floatwise=False,
)
