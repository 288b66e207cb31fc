# SPDX-License-Identifier: Apache-2.0
"""What is found in TrainingArguments that Trainer accepts: what it does, and what to write instead."""

from __future__ import annotations

from floatwise.language import Text

__all__ = ["APEX", "FLOAT16_ON_CPU", "FOREIGN_KEY", "FULL_EVAL", "KNOWN_WHEN_RUN"]

# Each with the library: tests/exporters/test_transformers_trains.py.

FLOAT16_ON_CPU = (
    Text(
        "On a CPU fp16 is taken and does nothing: everything trains in float32, and no message says so.",
        "在 CPU 上 fp16 会被接受但不起任何作用：全部以 float32 训练，且没有任何提示。",
    ),
    Text("Write bf16, which CPUs train in, or leave use_cpu out.", "改用 bf16（CPU 可以用它训练），或去掉 use_cpu。"),
)

FULL_EVAL = (
    Text(
        "evaluate() or predict() before train() casts the weights themselves to 16 bits, and train() goes on with "
        "them: no float32 copy is left, and small updates are lost.",
        "在 train() 之前调用 evaluate() 或 predict() 会把权重本身转换为 16 位，随后的 train() 就用它们训练："
        "float32 副本不复存在，小的更新会丢失。",
    ),
    Text(
        "Leave it out (fp16 and bf16 hold in evaluation, too), or evaluate in a run of its own.",
        "去掉它（fp16、bf16 在评估时同样有效），或在单独的进程里评估。",
    ),
)

APEX = (
    Text(
        "NVIDIA apex's amp is no longer maintained, and Trainer has dropped it in version 5.",
        "NVIDIA apex 的 amp 已不再维护，Trainer 在第 5 版中已移除它。",
    ),
    Text("Delete this key: PyTorch's autocast does the same.", "删除此键：PyTorch 的 autocast 功能相同。"),
)

KNOWN_WHEN_RUN = (
    Text(
        "The value is known only when the script runs; it is taken for false here.",
        "该值只有运行脚本时才知道；这里按 false 处理。",
    ),
    Text("Write true or false to have it read.", "如需读取，请直接写 true 或 false。"),
)

FOREIGN_KEY = (
    Text(
        "No argument of TrainingArguments: {keys}. Where no other dataclass of the script has one of these, "
        "HfArgumentParser ends with ValueError: Some keys are not used.",
        "不是 TrainingArguments 的参数：{keys}。如果脚本中其他 dataclass 也没有其中某一个，HfArgumentParser 会报 "
        "ValueError：Some keys are not used。",
    ),
    Text("Delete those that are not arguments of the script's own.", "不是脚本自己的参数的，请删除。"),
)
