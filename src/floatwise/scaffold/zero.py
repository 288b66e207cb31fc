# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's configuration for the frameworks that train with ZeRO."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from floatwise.language import Text
from floatwise.plan import Plan, recipe
from floatwise.scaffold.framework import ConfigFile

if TYPE_CHECKING:
    from floatwise.scaffold.answers import Answers
    from floatwise.scaffold.choices import Choices

__all__ = ["float16_note", "zero_config", "zero_plan"]


def zero_plan(plan: Plan) -> Plan:
    """Returns the plan as DeepSpeed is to train it.

    float16 becomes 16-bit weights with float32 master weights in the optimizer, because float16 autocast under ZeRO
    never lowers its loss scale (measured on DeepSpeed 0.19.8). The islands are made by `train.py`.
    """
    if plan.compute_dtype != "float16":
        return plan
    return recipe(
        "fp16-master",
        target=plan.target,
        script=plan.script,
        float32_matmul=plan.float32_matmul,
        loss_scale=plan.loss_scale,
    )


def zero_config(answers: Answers, choices: Choices, batches: dict[str, Any]) -> ConfigFile:
    """Returns the row of `ds_config.json`.

    Args:
      answers: Whose parallelism is zero1, zero2 or zero3.
      choices: With the plan.
      batches: What stands for batch sizes and clipping, by key.
    """

    def with_batches(text: str) -> str:
        values = json.loads(text)
        del values["train_micro_batch_size_per_gpu"]
        return json.dumps(batches | values, indent=2) + "\n"

    return ConfigFile(
        name="ds_config.json",
        system="deepspeed",
        options={"stage": int(answers.parallel.removeprefix("zero"))},
        plan=zero_plan(choices.plan),
        wrap=with_batches,
    )


def float16_note(answers: Answers, choices: Choices) -> tuple[Text, ...]:
    """Returns what to know about float16 under ZeRO; nothing for other plans."""
    if choices.plan.compute_dtype != "float16":
        return ()
    return (
        Text(
            "DeepSpeed's float16 is not autocast: it stores the weights in float16 and keeps float32 master weights in "
            "the optimizer, and all operators compute in float16. ds_config.json says so; float16 autocast under ZeRO "
            "never lowers its loss scale in DeepSpeed 0.19.8.",
            "DeepSpeed 的 float16 不是 autocast：权重以 float16 存储，优化器里保留 float32 主权重，所有算子都用 "
            "float16 计算。ds_config.json 就是这样写的；在 DeepSpeed 0.19.8 中，ZeRO 下的 float16 autocast "
            "从不减小损失缩放。",
        ),
    )
