# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: alone, under DDP, or with DeepSpeed's ZeRO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from floatwise.language import Text
from floatwise.scaffold.framework import ConfigFile, Framework
from floatwise.scaffold.own_code import without_own_code
from floatwise.scaffold.zero import float16_note, zero_config

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["TRAINER"]

_FSDP2 = Text(
    "with Trainer choose zero3, which divides the same; FSDP2 is there with --framework pytorch, accelerate or "
    "lightning",
    "使用 Trainer 时请选择作用相同的 zero3；FSDP2 可用 --framework pytorch、accelerate 或 lightning",
)


def _is_zero(answers: Answers) -> bool:
    return answers.parallel.startswith("zero")


def _packages(answers: Answers) -> tuple[str, ...]:
    packages = ("torch", "numpy", "transformers", "accelerate")
    return (*packages, "deepspeed") if _is_zero(answers) else packages


def _templates(answers: Answers, choices: Choices) -> Mapping[str, str]:
    templates = {
        "train.py": "trainer/train.py.j2",
        "model.py": "torch/model.py.j2",
        "census.py": "torch/census.py.j2",
        "find_nan.py": "torch/find_nan.py.j2",
    }
    if answers.parallel != "single":
        templates["few_gpus.py"] = "torch/few_gpus.py.j2"
    if _is_zero(answers):
        templates["zero_census.py"] = "deepspeed/zero_census.py.j2"
    return templates


def _configs(answers: Answers, choices: Choices) -> tuple[ConfigFile, ...]:
    if _is_zero(answers):
        keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        # "auto": Trainer fills them in, so that they cannot disagree with TrainingArguments.
        return (zero_config(answers, choices, dict.fromkeys(keys, "auto")),)
    return (ConfigFile(name="training_args.json", system="transformers", plan=without_own_code(choices.plan)),)


def _notes(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    return float16_note(answers, choices) if _is_zero(answers) else ()


def _cpu_exception(answers: Answers, choices: Choices) -> Text | None:
    if choices.plan.compute_dtype != "float16":
        return None
    return Text(
        "Trainer has no float16 on CPUs, so train.py takes float32 there; run this on the GPU",
        "Trainer 在 CPU 上不支持 float16，train.py 在那里改用 float32；请在 GPU 上运行",
    )


TRAINER = Framework(
    name="trainer",
    title=Text("Hugging Face Trainer", "Hugging Face Trainer"),
    refused={"fsdp2": _FSDP2},
    packages=_packages,
    templates=_templates,
    configs=_configs,
    notes=_notes,
    cpu_exception=_cpu_exception,
    file_texts={
        "training_args.json": Text("the plan as arguments of TrainingArguments", "计划对应的 TrainingArguments 参数"),
        "ds_config.json": Text("the plan as DeepSpeed's configuration", "计划对应的 DeepSpeed 配置"),
        "few_gpus.py": Text("more processes than GPUs train on the CPU", "进程数多于 GPU 数时改用 CPU"),
        "zero_census.py": Text("the census where ZeRO divides tensors", "ZeRO 分片时的格式统计"),
    },
    test_steps=24,
)
