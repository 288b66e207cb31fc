# SPDX-License-Identifier: Apache-2.0
"""What is found in configurations that Accelerate accepts: what it does, and what to write instead."""

from __future__ import annotations

from floatwise.language import Text

__all__ = [
    "AUTOCAST_OFF",
    "DEEPSPEED_UNREAD",
    "DOWNCAST",
    "FLOAT16_ON_CPU",
    "IDLE_AMAX",
    "IDLE_FP8_CONFIG",
    "MEGATRON",
    "MS_AMP",
    "POLICY_ALONE",
    "SET_BY_LAUNCHER",
    "TWO_PRECISIONS",
]

FLOAT16_ON_CPU = (
    Text(
        "On a CPU fp16 is taken and does nothing: everything trains in float32, and no message says so.",
        "在 CPU 上 fp16 会被接受但不起任何作用：全部以 float32 训练，且没有任何提示。",
    ),
    Text("Write bf16, which CPUs train in, or use a GPU.", "改用 bf16（CPU 可以用它训练），或使用 GPU。"),
)

IDLE_FP8_CONFIG = (
    Text(
        "fp8_config counts only with mixed_precision: fp8; it does nothing here.",
        "fp8_config 只有在 mixed_precision: fp8 时才起作用；在这里无效。",
    ),
    Text("Write mixed_precision: fp8, or delete fp8_config.", "改为 mixed_precision: fp8，或删除 fp8_config。"),
)

IDLE_AMAX = (
    Text(
        "`accelerate config` writes this key and `accelerate launch` passes it over: it does nothing.",
        "`accelerate config` 会写入此键，而 `accelerate launch` 会忽略它：不起任何作用。",
    ),
    Text(
        "Write amax_history_len and amax_compute_algo, which are read.",
        "请改写为会被读取的 amax_history_len 与 amax_compute_algo。",
    ),
)
# accelerate/commands/config/cluster.py writes them, utils/dataclasses.py `TERecipeKwargs` reads others; 1.15.0.

MEGATRON = (
    Text(
        "Under MEGATRON_LM the model is Megatron-LM's: with fp16 or bf16 its weights are stored in 16 bits, with "
        "float32 master weights. The plan given here is that of Accelerate alone.",
        "MEGATRON_LM 下模型由 Megatron-LM 构建：fp16 或 bf16 时权重以 16 位存储，并带 float32 主权重。"
        "这里给出的计划只反映 Accelerate 本身。",
    ),
    Text("Read Megatron-LM's flags instead.", "请改为读取 Megatron-LM 的参数。"),
)

DEEPSPEED_UNREAD = (
    Text(
        "The configuration of this DeepSpeedPlugin is known only when the script runs; the plan given here is that of "
        "DeepSpeed's defaults.",
        "该 DeepSpeedPlugin 的配置只有运行脚本时才知道；这里给出的计划按 DeepSpeed 的默认值。",
    ),
    Text("Read its JSON file together with this one.", "请将其 JSON 文件与此文件一起读取。"),
)

DOWNCAST = (
    Text(
        "downcast_bf16 is for TPUs: there float32 tensors are stored in bfloat16, the weights among them; elsewhere "
        "it does nothing.",
        "downcast_bf16 仅用于 TPU：float32 张量（包括权重）会以 bfloat16 存储；在其他设备上无效。",
    ),
    Text("Delete it, or write 'no'.", "删除它，或写成 'no'。"),
)

SET_BY_LAUNCHER = (
    Text(
        "mixed_precision is not written here: `accelerate launch`, its file or ACCELERATE_MIXED_PRECISION decide it. "
        "It is taken for no.",
        "此处没有写明 mixed_precision：由 `accelerate launch`、其配置文件或 ACCELERATE_MIXED_PRECISION 决定。"
        "这里按 no 处理。",
    ),
    Text(
        "Write it, or read the file of `accelerate launch` as well.",
        "请写明，或同时读取 `accelerate launch` 的配置文件。",
    ),
)

POLICY_ALONE = (
    Text(
        "The policy computes in 16 bits while mixed_precision is no: there is no autocast and no loss scale, and "
        "weights loaded in 16 bits are not made float32 for the optimizer.",
        "策略以 16 位计算，而 mixed_precision 为 no：没有 autocast，没有损失缩放，以 16 位加载的权重也不会"
        "为优化器转换为 float32。",
    ),
    Text(
        "Write mixed_precision as well: bf16 or fp16, as in the policy.",
        "同时写明与策略一致的 mixed_precision：bf16 或 fp16。",
    ),
)

TWO_PRECISIONS = (
    Text(
        "mixed_precision and the policy's param_dtype differ. FSDP1 computes in the first, on weights rounded to the "
        "second; FSDP2 computes in the second. The loss is scaled as the first says.",
        "mixed_precision 与策略的 param_dtype 不一致。FSDP1 按前者计算，但权重先舍入为后者；FSDP2 按后者计算。"
        "损失缩放取决于前者。",
    ),
    Text("Write the same format in both.", "两处写同一格式。"),
)

AUTOCAST_OFF = (
    Text(
        "enabled=False switches autocast off: without FSDP the model computes in float32, whatever mixed_precision "
        "says.",
        "enabled=False 关闭了 autocast：不使用 FSDP 时，无论 mixed_precision 如何，模型都以 float32 计算。",
    ),
    Text(
        "Delete it; for a part of the model use accelerator.autocast(AutocastKwargs(enabled=False)) there.",
        "删除它；如只针对模型的一部分，请在该处使用 accelerator.autocast(AutocastKwargs(enabled=False))。",
    ),
)

MS_AMP = (
    Text(
        "MS-AMP stores weights, gradients and optimizer states in 8 and 16 bits, which no plan says.",
        "MS-AMP 以 8 位和 16 位存储权重、梯度和优化器状态，计划无法表达。",
    ),
    Text("Use the backend AO or TE.", "请使用后端 AO 或 TE。"),
)
