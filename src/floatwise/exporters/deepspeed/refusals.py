# SPDX-License-Identifier: Apache-2.0
"""Plans that DeepSpeed would train wrongly or not at all, and what to know about the others."""

from __future__ import annotations

from floatwise.exporters.deepspeed.modes import AUTOCAST_SINCE, FP16_STAGE_0_BROKEN_SINCE, Mode, mode_of_plan
from floatwise.exporters.system import Refusal, Remark, Request
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS
from floatwise.plan.model import Plan

__all__ = ["REFUSALS", "REMARKS"]

_MASTER = Text(
    "Take the recipe fp16-master (16-bit weights with float32 master weights), or bf16-mixed.",
    "改用方案 fp16-master（16 位权重加 float32 主权重）或 bf16-mixed。",
)


def _is(mode: Mode, plan: Plan) -> bool:
    return plan.compute_dtype not in FLOAT8_FORMATS and mode_of_plan(plan) == mode


def _autocast(plan: Plan, request: Request) -> bool:
    return plan.compute_dtype not in FLOAT8_FORMATS and mode_of_plan(plan).kind == "autocast"


def _fp16_autocast(plan: Plan) -> bool:
    return _is(Mode("autocast", "float16"), plan)


def _fp16_block(plan: Plan) -> bool:
    return _is(Mode("stored", "float16"), plan)


REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text(
            "DeepSpeed has no float8 training: a table fp8 would be ignored without a word.",
            "DeepSpeed 没有 float8 训练：写 fp8 表会被静默忽略。",
        ),
        instead=Text(
            "Convert the Linear layers before deepspeed.initialize: export to torchao or TransformerEngine as well, "
            "and give DeepSpeed the recipe bf16-mixed.",
            "在 deepspeed.initialize 之前转换 Linear 层：同时导出到 torchao 或 TransformerEngine，"
            "并让 DeepSpeed 使用方案 bf16-mixed。",
        ),
        source="runtime/precision_config.py and runtime/config.py, 0.19.8",
    ),
    Refusal(
        when=lambda plan, request: _fp16_block(plan) and request.options["stage"] == 0,
        since=FP16_STAGE_0_BROKEN_SINCE,
        what=Text(
            "fp16 at ZeRO stage 0: the loss is not scaled, yet gradients are divided by the scale, so that updates are "
            "65536 times too small.",
            "ZeRO stage 0 下使用 fp16：损失没有缩放，梯度却仍除以缩放系数，更新量缩小为 1/65536。",
        ),
        instead=Text("Choose stage 1: on one process it costs nothing.", "选择 stage 1：单进程时没有额外代价。"),
        source="deepspeedai/DeepSpeed#8393; measured on 0.19.8; tags v0.18.2 and v0.18.3",
    ),
    Refusal(
        when=lambda plan, request: _is(Mode("stored", "bfloat16"), plan) and request.options["stage"] == 0,
        since="0.18.5",
        until="0.18.6",
        what=Text(
            "bf16 at ZeRO stage 0: gradients are divided by 65536.", "ZeRO stage 0 下使用 bf16：梯度会除以 65536。"
        ),
        instead=Text("Choose stage 1, or another version.", "选择 stage 1，或换用其他版本。"),
        source="deepspeedai/DeepSpeed#7837, corrected by #7839 in 0.18.6",
    ),
    Refusal(
        when=_autocast,
        until=AUTOCAST_SINCE,
        what=Text(
            "Float32 weights with a 16-bit compute format need the table torch_autocast, which came in 0.17.2.",
            "float32 权重配 16 位计算格式需要 torch_autocast 表，该表自 0.17.2 起才有。",
        ),
        instead=Text(
            "Upgrade DeepSpeed, or take the recipe bf16-master or fp16-master.",
            "升级 DeepSpeed，或改用方案 bf16-master 或 fp16-master。",
        ),
        source="tag v0.17.2",
    ),
    Refusal(
        when=lambda plan, request: _fp16_autocast(plan) and request.options["stage"] > 0,
        since=AUTOCAST_SINCE,
        what=Text(
            "torch_autocast in float16 with ZeRO: an overflow never lowers the loss scale, so that every later step is "
            "skipped; and gradient_clipping (1.0 by default) acts on scaled gradients, so that updates are about 65536 "
            "times too small.",
            "torch_autocast 使用 float16 且启用 ZeRO：溢出从不减小缩放系数，此后每一步都被跳过；而且 gradient_clipping"
            "（默认 1.0）作用于未除以系数的梯度，更新量约缩小为 1/65536。",
        ),
        instead=Text(f"{_MASTER.en} Stage 0 trains it as it says.", f"{_MASTER.zh}stage 0 可按计划训练。"),
        source="runtime/zero/stage_1_and_2.py and stage3.py, `torch_autocast_gradscaler`; measured on 0.19.8",
    ),
    Refusal(
        when=lambda plan, request: _fp16_autocast(plan) and request.options["stage"] == 0,
        since=AUTOCAST_SINCE,
        until="0.18.0",
        what=Text(
            "torch_autocast in float16 at ZeRO stage 0 does not scale the loss before 0.18.0.",
            "0.18.0 之前，ZeRO stage 0 下 torch_autocast 使用 float16 时不缩放损失。",
        ),
        instead=_MASTER,
        source="runtime/engine.py, tags v0.17.6 and v0.18.0",
    ),
    Refusal(
        when=lambda plan, request: plan.loss_scale is not None and plan.compute_dtype != "float16",
        what=Text(
            "The plan has float16 gradients beside another compute format, and DeepSpeed scales the loss only where "
            "it computes in float16.",
            "计划在其他计算格式之外还有 float16 梯度，而 DeepSpeed 仅在以 float16 计算时缩放损失。",
        ),
        instead=Text(
            "Write float32 or bfloat16 for output_dtype, reduce_dtype and accumulate_dtype, and delete [loss_scale].",
            "将 output_dtype、reduce_dtype、accumulate_dtype 改为 float32 或 bfloat16，并删除 [loss_scale]。",
        ),
        source="runtime/fp16/loss_scaler.py, `CreateLossScaler`, 0.19.8",
    ),
)
"""What is not exported, by version."""

REMARKS = (
    Remark(
        when=lambda plan, request: True,
        what=Text(
            "Merge these keys into your own file: only precision and the ZeRO stage are written, and "
            "train_micro_batch_size_per_gpu 1 stands for your batch size. Under Trainer or Accelerate set their "
            "mixed precision to the same, or they refuse to start.",
            "请将这些键合并到您自己的文件：这里只写精度和 ZeRO stage，train_micro_batch_size_per_gpu 的 1 请换成"
            "实际批大小。与 Trainer 或 Accelerate 同用时，其混合精度须与此一致，否则无法启动。",
        ),
        source="runtime/config.py, `_batch_assertion`, 0.19.8; transformers 5.24.0, integrations/deepspeed.py",
    ),
    Remark(
        when=lambda plan, request: mode_of_plan(plan).kind == "stored",
        what=Text(
            "All operators compute in 16 bits: no autocast list keeps softmax, norms or losses in float32. Cast "
            "floating inputs to that format (fp16.auto_cast does so for positional ones only), and compute the loss on "
            "outputs.float().",
            "所有算子都以 16 位计算：softmax、归一化和损失不会保持 float32。请把浮点输入转换为该格式"
            "（fp16.auto_cast 只转换位置参数），并在 outputs.float() 上计算损失。",
        ),
        source="runtime/engine.py, `_configure_distributed_model` and `_cast_inputs_half`, 0.19.8; measured",
    ),
    Remark(
        when=lambda plan, request: _fp16_block(plan),
        what=Text(
            "An overflow at min_loss_scale ends the run with an error at stages 1 to 3; and devices without float16 "
            "support (most CPUs) are refused at the start.",
            "在 min_loss_scale 处再次溢出会使训练报错终止（stage 1 至 3）；"
            "不支持 float16 的设备（多数 CPU）启动时即被拒绝。",
        ),
        source="runtime/fp16/loss_scaler.py, `update_scale`; runtime/engine.py, `_do_sanity_check`, 0.19.8; measured",
    ),
    Remark(
        when=lambda plan, request: _fp16_autocast(plan),
        what=Text(
            "DeepSpeed does not count the steps that torch_autocast's GradScaler skips at stage 0: skipped_steps stays "
            "0, and the learning rate schedule advances.",
            "stage 0 下 torch_autocast 的 GradScaler 跳过的步不计入 DeepSpeed 的 skipped_steps，学习率调度照常前进。",
        ),
        source="runtime/engine.py, `_take_model_step`, 0.19.8; measured",
    ),
    Remark(
        when=lambda plan, request: (
            _autocast(plan, request) and request.options["stage"] > 0 and plan.reductions.reduce_dtype == "float32"
        ),
        what=Text(
            "Gradients travel in float32, as the plan says: lower_precision_safe_modules is empty. Delete it to send "
            "those of Linear and Conv layers in 16 bits, which halves the traffic.",
            "按计划以 float32 通信梯度：lower_precision_safe_modules 为空。删除它则 Linear 和 Conv 层的梯度以 16 位"
            "通信，通信量减半。",
        ),
        source="runtime/torch_autocast.py, 0.19.8; measured",
    ),
)
"""What to know beside the losses."""
