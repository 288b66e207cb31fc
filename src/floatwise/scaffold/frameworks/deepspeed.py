# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed: an engine that divides optimizer states, gradients and weights among devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import TORCHRUN, ConfigFile, Framework
from floatwise.scaffold.zero import float16_note, zero_config

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["DEEPSPEED"]

_NOT_ZERO = Text(
    "DeepSpeed without ZeRO is DDP: choose zero1, which costs no more, also on one device",
    "不用 ZeRO 的 DeepSpeed 就是 DDP：请选择 zero1，没有额外开销，单卡也可用",
)
_FSDP2 = Text(
    "FSDP2 is PyTorch's: choose zero3, which divides the same, or --framework pytorch",
    "FSDP2 属于 PyTorch：请选择作用相同的 zero3，或 --framework pytorch",
)


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    return {
        "train.py": "deepspeed/train.py.j2",
        "model.py": "torch/model.py.j2",
        "census.py": "torch/census.py.j2",
        "zero_census.py": "deepspeed/zero_census.py.j2",
        "find_nan.py": "torch/find_nan.py.j2",
        "few_gpus.py": "torch/few_gpus.py.j2",
    }


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    batches = {
        "train_micro_batch_size_per_gpu": choices.micro_batch,
        "gradient_accumulation_steps": choices.accumulation,
        "gradient_clipping": choices.clip_norm,
    }
    return (zero_config(answers, choices, batches),)


def _notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    return (
        *float16_note(answers, choices),
        Text(
            "`deepspeed train.py` starts it on all GPUs of the machine, too; `zero_to_fp32.py` in the folder of "
            "checkpoints turns one into plain float32 weights.",
            "`deepspeed train.py` 同样会在本机所有 GPU 上启动；检查点目录中的 `zero_to_fp32.py` 可把检查点转为普通 "
            "float32 权重。",
        ),
    )


def _cpu_exception(answers: Answers, choices: Choices) -> Text | None:
    if choices.plan.compute_dtype != "float16":
        return None
    return Text(
        "DeepSpeed has no float16 on CPUs, so train.py takes float32 there; run this on the GPU",
        "DeepSpeed 在 CPU 上不支持 float16，train.py 在那里改用 float32；请在 GPU 上运行",
    )


DEEPSPEED = Framework(
    name="deepspeed",
    title=Text("DeepSpeed (ZeRO stages 1 to 3)", "DeepSpeed（ZeRO 第 1 至 3 阶段）"),
    refused={"single": _NOT_ZERO, "ddp": _NOT_ZERO, "fsdp2": _FSDP2},
    packages=lambda answers: ("torch", "numpy", "deepspeed"),
    templates=_templates,
    configs=_configs,
    launcher=lambda answers: TORCHRUN,
    notes=_notes,
    cpu_exception=_cpu_exception,
    file_texts={
        "ds_config.json": Text("the plan as DeepSpeed's configuration", "计划对应的 DeepSpeed 配置"),
        "few_gpus.py": Text("more processes than GPUs train on the CPU", "进程数多于 GPU 数时改用 CPU"),
        "zero_census.py": Text("the census where ZeRO divides tensors", "ZeRO 分片时的格式统计"),
    },
    test_steps=24,
)
