# SPDX-License-Identifier: Apache-2.0
"""What becomes of each value of a plan that DeepSpeed cannot hold."""

from __future__ import annotations

from floatwise.exporters.nearest import NO_FLOOR
from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss
from floatwise.language import Text

__all__ = ["LOSSES"]

_SCALER = Text(
    "fw.torch.LossScaler has it; with DeepSpeed there is no place for another scaler.",
    "fw.torch.LossScaler 支持该项；DeepSpeed 中无法换用其他缩放器。",
)

_SCALE_LOSSES = (
    Loss(
        paths=("loss_scale.mode",),
        what=Text(
            "torch_autocast scales with a GradScaler that has no static scale: it follows overflows.",
            "torch_autocast 使用 GradScaler 缩放，没有固定系数：系数随溢出变化。",
        ),
        instead=Text(
            "Take the recipe fp16-master at stage 1 or more: its table has a static scale.",
            "改用方案 fp16-master 且 stage 不低于 1：其表支持固定系数。",
        ),
    ),
    Loss(
        paths=("loss_scale.initial_scale",),
        what=Text(
            "The first loss scale is {after}, not {before}: the fp16 table takes powers of two from 1 to 2^32, and "
            "torch_autocast always begins with 65536.",
            "初始损失缩放系数为 {after} 而非 {before}：fp16 表只接受 1 至 2^32 的 2 的幂，torch_autocast 总是从 65536 "
            "开始。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth_factor", "loss_scale.backoff_factor"),
        what=Text(
            "DeepSpeed's loss scale doubles and halves, by no other factors.",
            "DeepSpeed 的损失缩放系数只能加倍和减半，不能用其他倍数。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth_interval",),
        what=Text(
            "growth_interval is no setting here: torch_autocast waits 2000 steps, and a static scale never grows.",
            "这里不能设置 growth_interval：torch_autocast 固定等待 2000 步，固定系数则从不增大。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth", "loss_scale.headroom_bits"),
        what=Text(
            "A dynamic scale grows after every interval of good steps without looking for room: a step is skipped "
            "each time that is too far. A static scale never grows.",
            "动态系数每隔一段正常步就增大，不看是否留有余量：每次增大过头都会跳过一步。固定系数则从不增大。",
        ),
        instead=_SCALER,
    ),
    Loss(
        paths=("loss_scale.hysteresis",),
        what=Text(
            "The scale falls at the first overflow, not after {before} in a row: without ZeRO DeepSpeed does not wait. "
            "A static scale never falls.",
            "首次溢出即减小系数，而不是连续 {before} 次之后：不用 ZeRO 时 DeepSpeed 不等待。固定系数则从不减小。",
        ),
        instead=Text("Choose stage 1 or more.", "选择 stage 1 或以上。"),
    ),
    Loss(
        paths=("loss_scale.floor",),
        after=NO_FLOOR,
        what=Text(
            "torch_autocast scales with a GradScaler that has no floor: after overflows in a row its scale falls to 0, "
            "and the next step writes NaN into the weights.",
            "torch_autocast 使用没有下限的 GradScaler：连续溢出后系数降到 0，下一步就会把 NaN 写入权重。",
        ),
        instead=_SCALER,
    ),
    Loss(
        paths=("loss_scale.floor",),
        what=Text(
            "The floor of the scale is {after}, not {before}: min_loss_scale is a whole number from 1 to the first "
            "scale, and a static scale has none.",
            "缩放系数下限为 {after} 而非 {before}：min_loss_scale 只能是 1 到初始系数之间的整数；固定系数没有下限。",
        ),
    ),
    Loss(
        paths=("loss_scale.ceiling",),
        what=Text(
            "The scale has no ceiling: it doubles until something overflows, and that step is skipped. A static scale "
            "never grows.",
            "缩放系数没有上限：不断翻倍，直到溢出而跳过一步。固定系数则从不增大。",
        ),
        instead=_SCALER,
    ),
)

LOSSES = (
    Loss(
        paths=("modules*",),
        what=Text(
            "DeepSpeed has one format for all modules: islands are lost. (lower_precision_safe_modules decides what "
            "is communicated, keep_in_fp32_modules which buffers stay; neither decides what computes.)",
            "DeepSpeed 对所有模块使用同一格式：岛会丢失。（lower_precision_safe_modules 只决定通信，"
            "keep_in_fp32_modules 只决定缓冲区，都不决定计算。）",
        ),
        instead=Text(
            "With float32 weights, wrap the forward of these modules in torch.autocast(device, enabled=False) and cast "
            "their inputs to float32.",
            "权重为 float32 时，在这些模块的 forward 外套 torch.autocast(device, enabled=False)，"
            "并把输入转换为 float32。",
        ),
    ),
    Loss(
        paths=("weights.master",),
        after="none",
        what=Text("All weights are float32, which need no master weights.", "所有权重均为 float32，不需要主权重。"),
    ),
    Loss(
        paths=("weights.master",),
        what=Text(
            "DeepSpeed keeps a second copy of the weights in float32 ({before} is not there): 4 more bytes a weight, "
            "sharded over processes from ZeRO stage 1 on.",
            "DeepSpeed 保留一份 float32 权重副本（没有 {before}）：每个权重多占 4 字节，从 ZeRO stage 1 起跨进程分片。",
        ),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text(
            "Outputs are handed on as the last operator leaves them: {after}, not {before}.",
            "输出保持最后一个算子的格式：为 {after}，而非 {before}。",
        ),
        instead=Text("Cast them before the loss: outputs.float().", "在计算损失前转换：outputs.float()。"),
    ),
    Loss(
        paths=("float32_matmul", "recipe"),
        what=Text("How float32 products are computed is not part of it.", "float32 乘法的计算方式不在其中。"),
        instead=Text(
            'Call torch.set_float32_matmul_precision("high") for TF32.',
            '如需 TF32，请调用 torch.set_float32_matmul_precision("high")。',
        ),
    ),
    Loss(
        paths=("reductions.accumulate_dtype",),
        what=Text(
            "Gradients are summed over micro-batches in {after}, not {before}: without ZeRO in the format of the "
            "weights, at stage 2 in float32 where weights are float32.",
            "梯度跨微批以 {after} 累加，而非 {before}：不用 ZeRO 时与权重同格式；"
            "stage 2 且权重为 float32 时为 float32。",
        ),
        instead=Text(
            "Choose stage 1 or 3, where data_types.grad_accum_dtype decides.",
            "选择 stage 1 或 3，由 data_types.grad_accum_dtype 决定。",
        ),
    ),
    Loss(
        paths=("reductions.reduce_dtype",),
        what=Text(
            "Gradients are summed over processes in {after}, not {before}: under torch_autocast that is its dtype or "
            "float32.",
            "梯度跨进程以 {after} 求和，而非 {before}：torch_autocast 下只能是其 dtype 或 float32。",
        ),
    ),
    Loss(
        paths=("reductions.buffer_dtype",),
        what=Text(
            "Buffers are {after}, not {before}: data_types.buffer_dtype acts beside the fp16 and bf16 tables only, "
            "since 0.19.2; before, buffers took the format of the weights.",
            "缓冲区为 {after}，而非 {before}：data_types.buffer_dtype 仅与 fp16、bf16 表同用时有效（自 0.19.2 起）；"
            "此前缓冲区与权重同格式。",
        ),
        instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
    ),
    *_SCALE_LOSSES,
    *RECORD_LOSSES,
)
"""In the order in which they are looked through."""
