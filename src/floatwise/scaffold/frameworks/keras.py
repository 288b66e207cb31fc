# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on TensorFlow, JAX or PyTorch: `fit()` on one device, or data parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ONE_PROCESS, ConfigFile, Framework

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["KERAS"]

_ZERO = Text(
    "ZeRO is DeepSpeed's: choose --framework deepspeed, trainer or accelerate",
    "ZeRO 属于 DeepSpeed：请选择 --framework deepspeed、trainer 或 accelerate",
)
_FSDP = Text(
    "FSDP2 is PyTorch's: choose --framework pytorch, or flax, whose fsdp2 divides the state among devices, too",
    "FSDP2 属于 PyTorch：请选择 --framework pytorch，或 flax（其 fsdp2 同样把状态分到各设备）",
)
_TORCH_DDP = Text(
    "Keras has no data parallelism on PyTorch; choose --backend tensorflow or jax, or --framework pytorch",
    "Keras 在 PyTorch 后端上没有数据并行；请选择 --backend tensorflow 或 jax，或 --framework pytorch",
)


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    names = ["train", "model", "census", "find_nan"]
    if answers.backend == "tensorflow" and answers.parallel == "ddp":
        names.append("replicas")
    return {f"{name}.py": f"keras/{name}.py.j2" for name in names}


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    return (ConfigFile(name="precision.py", system="keras"),)


def _notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    notes = []
    if answers.parallel == "ddp":
        notes.append(
            Text(
                "One process uses all devices: `DEVICES` in `train.py` says how many, CUDA_VISIBLE_DEVICES which. "
                "Without a GPU the CPU is divided into as many.",
                "单个进程使用全部设备：数量见 `train.py` 中的 `DEVICES`，用 CUDA_VISIBLE_DEVICES 选择。"
                "没有 GPU 时把 CPU 划分成同样数量的设备。",
            )
        )
    own_accumulation = answers.backend == "tensorflow" and answers.parallel == "ddp"
    if choices.plan.loss_scale is not None and not own_accumulation:
        notes.append(
            Text(
                "With `--accumulate`, Keras judges every micro-batch by itself: one that overflows is left out, and "
                "the optimizer waits for one more, so that its steps come that much later than those counted here.",
                "使用 `--accumulate` 时，Keras 单独判断每个微批：溢出的微批被舍弃，优化器会多等一个微批，"
                "因此其更新会比这里计数的步相应推后。",
            )
        )
    if choices.checkpoint_activations and answers.task == "image":
        notes.append(
            Text(
                "Blocks normalise by GroupNormalization: BatchNormalization inside keras.RematScope updates its "
                "averages twice per step (measured on the PyTorch backend of Keras 3.15.1).",
                "各块使用 GroupNormalization：在 keras.RematScope 中，BatchNormalization 每步会更新两次滑动平均"
                "（在 Keras 3.15.1 的 PyTorch 后端上实测）。",
            )
        )
    if choices.plan.compute_dtype == "float16":
        notes.append(
            Text(
                "On a CPU, float16 is several times slower than float32: try the script there, train on the GPU.",
                "在 CPU 上 float16 比 float32 慢数倍：可在 CPU 上试运行，请在 GPU 上训练。",
            )
        )
    return tuple(notes)


KERAS = Framework(
    name="keras",
    title=Text("Keras 3", "Keras 3"),
    refused={"fsdp2": _FSDP, "zero1": _ZERO, "zero2": _ZERO, "zero3": _ZERO, "torch/ddp": _TORCH_DDP},
    backends=("tensorflow", "jax", "torch"),
    packages=lambda answers: ("keras", answers.backend, "h5py", "numpy"),
    templates=_templates,
    configs=_configs,
    launch_many=lambda answers: "python train.py",
    launcher=lambda answers: ONE_PROCESS,
    notes=_notes,
    file_texts={
        "precision.py": Text(
            "the plan as Keras' dtype policies and loss scale", "计划对应的 Keras dtype 策略和损失缩放"
        ),
        "replicas.py": Text(
            "what data-parallel training on TensorFlow needs beside Keras",
            "TensorFlow 数据并行训练在 Keras 之外所需的代码",
        ),
    },
    runs_under_floatwise=False,
)
