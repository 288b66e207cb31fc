# SPDX-License-Identifier: Apache-2.0
"""What Megatron-LM's flags cannot hold of a plan, and what to know about them."""

from __future__ import annotations

from floatwise.exporters.megatron.knobs import REMAINDERS_SINCE
from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_ARGUMENTS = "megatron/training/arguments.py, core_v0.19.0"
_SCALER = "megatron/core/optimizer/grad_scaler.py, core_v0.19.0"

REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype == "float8_e4m3fnuz",
        what=Text(
            "Its float8 is TransformerEngine's, for NVIDIA devices, which have no e4m3fnuz.",
            "其 float8 来自 TransformerEngine，面向 NVIDIA 设备，没有 e4m3fnuz。",
        ),
        instead=Text("Write float8_e4m3fn.", "请写 float8_e4m3fn。"),
        source=_ARGUMENTS,
    ),
)

LOSSES = (
    Loss(
        paths=("modules*",),
        what=Text("No flag names modules: islands are lost.", "没有按模块设置的参数：岛会丢失。"),
        instead=Text(
            "--attention-softmax-in-fp32 and --fp32-residual-connection keep these in float32, "
            "--first-last-layers-bf16 keeps outer blocks out of float8.",
            "--attention-softmax-in-fp32 和 --fp32-residual-connection 使相应部分保持 float32，"
            "--first-last-layers-bf16 使首尾的块不使用 float8。",
        ),
    ),
    Loss(
        paths=("policy.param_dtype",),
        what=Text(
            "The model itself is cast: weights are stored in {after}, with float32 weights beside them for the "
            "optimizer.",
            "模型本身会被转换：权重以 {after} 存储，优化器另有 float32 权重。",
        ),
    ),
    Loss(
        paths=("recipe",),
        what=Text("The recipe with such weights is {after}.", "权重如此存储的配方是 {after}。"),
    ),
    Loss(
        paths=("weights.master",),
        before="split",
        what=Text(
            "Master weights are a float32 copy: 6 bytes a weight in all, not 4.",
            "主权重为 float32 副本：每个权重共 6 字节，而不是 4 字节。",
        ),
        instead=Text(
            f"From {REMAINDERS_SINCE} on --use-precision-aware-optimizer keeps trailing bits only, not with float8.",
            f"自 {REMAINDERS_SINCE} 起 --use-precision-aware-optimizer 只保存低位（float8 除外）。",
        ),
    ),
    Loss(
        paths=("weights.master",),
        what=Text("Megatron's optimizer keeps float32 weights.", "Megatron 的优化器保存 float32 权重。"),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text("Outputs of the last stage are cast to float32.", "最后一级的输出会转换为 float32。"),
    ),
    Loss(
        paths=("scaling",),
        before="rowwise_with_gw_hp",
        what=Text(
            "Gradients of weights are products in float8 too.",
            "权重梯度同样以 float8 相乘。",
        ),
        instead=Text("torchao has this recipe.", "torchao 有该配方。"),
    ),
    Loss(
        paths=("scaling",),
        what=Text(
            "This version has one scale factor per tensor only.",
            "该版本每个张量只有一个缩放因子。",
        ),
        instead=Text("Use Megatron-Core 0.13 or newer.", "请使用 Megatron-Core 0.13 或更新版本。"),
    ),
    Loss(
        paths=("reductions.accumulate_dtype", "reductions.reduce_dtype"),
        what=Text(
            "One buffer holds gradients for batches and processes alike: both are summed in {after}.",
            "同一个缓冲区用于跨批累加和跨进程归约：两者都使用 {after}。",
        ),
    ),
    Loss(
        paths=("reductions.buffer_dtype",),
        what=Text(
            "Buffers are cast with the model, to {after}.",
            "缓冲区随模型一起转换为 {after}。",
        ),
    ),
    Loss(
        paths=("float32_matmul",),
        what=Text("No flag decides how float32 products are computed.", "没有参数决定 float32 乘法的计算方式。"),
        instead=Text(
            'Call torch.set_float32_matmul_precision("high") in the training script.',
            '在训练脚本中调用 torch.set_float32_matmul_precision("high")。',
        ),
    ),
    Loss(
        paths=("loss_scale.growth_factor", "loss_scale.backoff_factor"),
        what=Text("The scale doubles and halves: 2.0 and 0.5 are fixed.", "缩放系数只翻倍和减半：固定为 2.0 和 0.5。"),
    ),
    Loss(
        paths=("loss_scale.ceiling",),
        what=Text(
            "The scale has no ceiling: it doubles until something overflows, and that step is skipped.",
            "缩放系数没有上限：不断翻倍，直到溢出而跳过一步。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth", "loss_scale.headroom_bits"),
        what=Text(
            "The scale grows after every window of good steps without looking for room.",
            "每经过一个正常窗口就增大缩放系数，不看是否留有余量。",
        ),
    ),
    Loss(
        paths=("loss_scale.floor", "loss_scale.growth_interval", "loss_scale.hysteresis"),
        what=Text(
            "A static scale has no other values: it never moves, and steps that overflow are skipped.",
            "静态缩放没有其他参数：系数不变，溢出的步会被跳过。",
        ),
    ),
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.loss_scale is not None and plan.loss_scale.hysteresis > 1,
        what=Text(
            "Overflows count towards hysteresis also when good steps lie between them; the count starts anew when the "
            "scale grows.",
            "即使中间有正常的步，溢出也会计入 hysteresis；缩放系数增大时重新计数。",
        ),
        source=_SCALER,
    ),
    Remark(
        when=lambda plan, request: plan.loss_scale is not None and plan.loss_scale.mode == "dynamic",
        what=Text(
            "With a dynamic scale Megatron turns its check for NaN in loss and gradients off.",
            "使用动态缩放时，Megatron 会关闭对损失和梯度的 NaN 检查。",
        ),
        source=_ARGUMENTS,
    ),
    Remark(
        when=lambda plan, request: plan.weights.master == "split" and plan.compute_dtype == "bfloat16",
        what=Text(
            "--use-precision-aware-optimizer is Adam of TransformerEngine 2.1 or newer, with optimizer states sharded.",
            "--use-precision-aware-optimizer 使用 TransformerEngine 2.1 或更新版本的 Adam，并对优化器状态分片。",
        ),
        source="megatron/core/optimizer/optimizer_config.py, core_v0.19.0",
        since=REMAINDERS_SINCE,
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text(
            "float8 needs TransformerEngine (--transformer-impl transformer_engine, the default) and compute "
            "capability 8.9 or higher; blockwise 9.0 with CUDA 12.9, mxfp8 10.x.",
            "float8 需要 TransformerEngine（默认的 --transformer-impl transformer_engine）和计算能力 8.9 或更高；"
            "blockwise 需 9.0 和 CUDA 12.9，mxfp8 需 10.x。",
        ),
        source="transformer_engine/pytorch/quantization.py, 2.20.2",
    ),
    Remark(
        when=lambda plan, request: plan.scaling in ("rowwise", "rowwise_with_gw_hp"),
        what=Text(
            "blockwise stands for one factor per row: one per 1 by 128 of inputs and gradients, per 128 by 128 of "
            "weights.",
            "以 blockwise 代替每行一个因子：输入和梯度每 1×128、权重每 128×128 一个。",
        ),
        source="transformer_engine/common/recipe/__init__.py, 2.20.2",
        since="0.13",
    ),
)
