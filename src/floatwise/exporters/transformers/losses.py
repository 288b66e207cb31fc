# SPDX-License-Identifier: Apache-2.0
"""What of a plan TrainingArguments cannot say, what Trainer would train wrongly, and what to know beside it."""

from __future__ import annotations

from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_SOURCE = "transformers/training_args.py, 5.24.0"

REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text("TrainingArguments has no float8.", "TrainingArguments 不支持 float8。"),
        instead=Text(
            "Export to accelerate (a YAML with mixed_precision: fp8), leave fp16 and bf16 false here, and start with "
            "`accelerate launch --config_file`: Trainer then takes the precision from there.",
            "请导出到 accelerate（YAML 中 mixed_precision: fp8），此处 fp16、bf16 保持 false，并用 "
            "`accelerate launch --config_file` 启动：Trainer 会从中取得精度设置。",
        ),
        source=_SOURCE,
    ),
    Refusal(
        when=lambda plan, request: plan.loss_scale is not None and plan.compute_dtype != "float16",
        what=Text(
            "Trainer scales the loss with fp16 only: float16 gradients of this plan's modules or sums would underflow.",
            "Trainer 只在 fp16 下缩放损失：该计划中模块或归约的 float16 梯度会下溢。",
        ),
        instead=Text(
            "Write bfloat16 in place of float16 there, or compute in float16.",
            "在这些位置用 bfloat16 代替 float16，或整体以 float16 计算。",
        ),
        source="accelerate/accelerator.py, 1.15.0: a scaler is made for mixed_precision fp16 alone",
    ),
)

LOSSES = (
    Loss(
        paths=("modules*",),
        what=Text("TrainingArguments knows no modules: islands are lost.", "TrainingArguments 不区分模块：岛会丢失。"),
        instead=Text(
            "In the forward of such a module: `with torch.autocast(device, enabled=False):`, on inputs cast by "
            ".float().",
            "在这些模块的 forward 中，对 .float() 转换后的输入使用 `with torch.autocast(device, enabled=False):`。",
        ),
    ),
    Loss(
        paths=("policy.param_dtype", "weights.master", "recipe"),
        what=Text(
            "Trainer trains the weights as they are loaded and keeps no master weights beside 16-bit ones, so they "
            "stay in float32: accuracy is the same, the weights take more memory.",
            "Trainer 直接训练加载的权重，不会在 16 位权重旁保留主权重，因此权重保持 float32：精度不变，"
            "权重占用更多内存。",
        ),
        instead=Text(
            "Export to deepspeed, which keeps 16-bit weights with float32 masters.",
            "请导出到 deepspeed：16 位权重配 float32 主权重。",
        ),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text("Accelerate converts the model's outputs to float32.", "Accelerate 会把模型输出转换为 float32。"),
    ),
    Loss(
        paths=("reductions.reduce_dtype",),
        what=Text(
            "DistributedDataParallel sums gradients in their own format: float32.",
            "DistributedDataParallel 以梯度自身的格式求和：float32。",
        ),
        instead=Text(
            "Export to deepspeed (communication_data_type), or to accelerate (comm_hook).",
            "请导出到 deepspeed（communication_data_type）或 accelerate（comm_hook）。",
        ),
    ),
    Loss(
        paths=("reductions.accumulate_dtype",),
        what=Text(
            "Gradients are summed over batches in the format of the weights: float32.",
            "梯度以权重的格式 float32 跨批累加。",
        ),
    ),
    Loss(
        paths=("reductions.buffer_dtype",),
        what=Text("Trainer leaves buffers as they are: float32.", "Trainer 不改变缓冲区：仍为 float32。"),
        instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
    ),
    Loss(
        paths=(
            "loss_scale.initial_scale",
            "loss_scale.growth_factor",
            "loss_scale.backoff_factor",
            "loss_scale.growth_interval",
            "loss_scale.mode",
        ),
        when=lambda request: request.form != "python",
        what=Text(
            "TrainingArguments has no loss scale: Accelerate makes a GradScaler that begins at 65536, doubles after "
            "2000 good steps and halves at an overflow. accelerator_config cannot change it, either.",
            "TrainingArguments 没有损失缩放：Accelerate 会创建 GradScaler，初始值 65536，连续 2000 步正常后翻倍，"
            "溢出后减半。accelerator_config 也无法改变它。",
        ),
        instead=Text(
            "Export with --form python: a Trainer subclass sets it in create_accelerator_and_postprocess.",
            "使用 --form python 导出：其中的 Trainer 子类在 create_accelerator_and_postprocess 中设置它。",
        ),
    ),
    *GRAD_SCALER_LOSSES,
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float16",
        what=Text(
            "Use a GPU: with use_cpu, and on machines without one, fp16 is taken and everything trains in float32, "
            "without a message.",
            "请使用 GPU：设置 use_cpu 或机器上没有 GPU 时，fp16 会被接受，但全部以 float32 训练，且没有提示。",
        ),
        source="measured on transformers 5.24.0 and accelerate 1.15.0",
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype == "bfloat16",
        what=Text(
            "bf16 needs a GPU with bfloat16 (NVIDIA Ampere or newer) or use_cpu; else Trainer ends with ValueError: "
            "Your setup doesn't support bf16/gpu.",
            "bf16 需要支持 bfloat16 的 GPU（NVIDIA Ampere 或更新）或 use_cpu；否则 Trainer 报 ValueError："
            "Your setup doesn't support bf16/gpu。",
        ),
        source=_SOURCE,
    ),
    Remark(
        when=lambda plan, request: plan.float32_matmul == "tf32",
        what=Text(
            "tf32 needs a GPU with TF32 (NVIDIA Ampere or newer); else Trainer ends with ValueError: --tf32 requires "
            "Ampere or a newer GPU arch.",
            "tf32 需要支持 TF32 的 GPU（NVIDIA Ampere 或更新）；否则 Trainer 报 ValueError："
            "--tf32 requires Ampere or a newer GPU arch。",
        ),
        source=_SOURCE,
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float32",
        what=Text(
            "With fp16 and bf16 both false, `accelerate launch` decides: its mixed_precision, or the environment "
            'variable ACCELERATE_MIXED_PRECISION, must be "no".',
            "fp16 和 bf16 均为 false 时由 `accelerate launch` 决定：其 mixed_precision 或环境变量 "
            'ACCELERATE_MIXED_PRECISION 必须为 "no"。',
        ),
        source=_SOURCE,
    ),
    Remark(
        when=lambda plan, request: True,
        what=Text(
            "Load the model by from_pretrained(..., dtype=torch.float32): since version 5 the default is the format of "
            "the checkpoint, and 16-bit weights would be trained without master weights (or, with fp16, raise "
            "ValueError: Attempting to unscale FP16 gradients).",
            "请用 from_pretrained(..., dtype=torch.float32) 加载模型：自第 5 版起默认采用检查点的格式，16 位权重会在"
            "没有主权重的情况下训练（使用 fp16 时则报 ValueError: Attempting to unscale FP16 gradients）。",
        ),
        source="measured on transformers 5.24.0; huggingface/sentence-transformers#3773",
        since="5.0.0",
    ),
)
