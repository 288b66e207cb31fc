# SPDX-License-Identifier: Apache-2.0
"""What of a plan Accelerate cannot say, what it would train wrongly, and what to know beside it."""

from __future__ import annotations

from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark, Request
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS, SIXTEEN_BIT_FORMATS
from floatwise.plan.model import Plan

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_SOURCE = "accelerate/accelerator.py, 1.15.0"


def _is_float8(plan: Plan, request: Request) -> bool:
    return plan.compute_dtype in FLOAT8_FORMATS


def _in_file(request: Request) -> bool:
    return request.form != "python"


REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.loss_scale is not None and plan.compute_dtype != "float16",
        what=Text(
            "Accelerate scales the loss with mixed_precision fp16 only: float16 gradients of this plan's modules or "
            "sums would underflow.",
            "Accelerate 只在 mixed_precision 为 fp16 时缩放损失：该计划中模块或归约的 float16 梯度会下溢。",
        ),
        instead=Text(
            "Write bfloat16 in place of float16 there, or compute in float16.",
            "在这些位置用 bfloat16 代替 float16，或整体以 float16 计算。",
        ),
        source=_SOURCE,
    ),
    Refusal(
        when=lambda plan, request: plan.scaling == "mx" and request.options["fp8_backend"] == "AO",
        what=Text(
            "Accelerate's torchao recipes have one scale factor per tensor or per row, not per 32 elements.",
            "Accelerate 的 torchao 配方按张量或按行取缩放因子，不支持每 32 个元素一个。",
        ),
        instead=Text("Export with the option fp8_backend TE.", "请使用选项 fp8_backend TE 导出。"),
        source="torchao/float8/config.py, 0.18.0",
    ),
    Refusal(
        when=lambda plan, request: plan.scaling == "mx" and request.options["fp8_backend"] == "TE",
        what=Text(
            "This version cannot ask TransformerEngine for MXFP8.", "该版本无法要求 TransformerEngine 使用 MXFP8。"
        ),
        instead=Text("Use Accelerate 1.11 or newer.", "请使用 Accelerate 1.11 或更新的版本。"),
        source="accelerate/utils/dataclasses.py, 1.10.0 and 1.11.0",
        until="1.11",
    ),
    Refusal(
        when=lambda plan, request: _is_float8(plan, request) and _in_file(request),
        what=Text(
            "This version does not read fp8_config's backend: it takes torchao wherever that is installed.",
            "该版本不读取 fp8_config 的 backend：只要安装了 torchao 就使用它。",
        ),
        instead=Text(
            "Use Accelerate 1.9 or newer, or --form python.", "请使用 Accelerate 1.9 或更新的版本，或 --form python。"
        ),
        source="accelerate/accelerator.py, 1.8.0 and 1.9.0",
        until="1.9",
    ),
)

LOSSES = (
    Loss(
        paths=("modules*",),
        what=Text("Accelerate knows no modules: islands are lost.", "Accelerate 不区分模块：岛会丢失。"),
        instead=Text(
            "In the forward of such a module: `with accelerator.autocast(AutocastKwargs(enabled=False)):` on inputs "
            "cast by .float(); under FSDP2 shard it by itself with a policy in float32.",
            "在这些模块的 forward 中，对 .float() 转换后的输入使用 "
            "`with accelerator.autocast(AutocastKwargs(enabled=False)):`；使用 FSDP2 时则以 float32 策略单独分片。",
        ),
    ),
    Loss(
        paths=("policy.param_dtype", "weights.master"),
        what=Text(
            "Accelerate keeps the weights in float32, where they are their own master weights: accuracy is the same, "
            "the weights take more memory.",
            "Accelerate 将权重保持为 float32，自身就是主权重：精度不变，权重占用更多内存。",
        ),
        instead=Text(
            "Export to deepspeed, which keeps 16-bit weights with float32 masters.",
            "请导出到 deepspeed：16 位权重配 float32 主权重。",
        ),
    ),
    Loss(
        paths=("policy.compute_dtype",),
        before="float8_e4m3fnuz",
        what=Text(
            "The float8 library takes the formats of the device: fnuz on AMD's MI300, {after} elsewhere.",
            "float8 库按设备选择格式：AMD MI300 上为 fnuz，其他设备为 {after}。",
        ),
    ),
    Loss(
        paths=("scaling",),
        when=lambda request: request.options["fp8_backend"] == "TE",
        what=Text(
            "TransformerEngine's DelayedScaling has one scale factor per tensor, taken from the steps before.",
            "TransformerEngine 的 DelayedScaling 每个张量一个缩放因子，取自之前的若干步。",
        ),
        instead=Text("Export with the option fp8_backend AO.", "请使用选项 fp8_backend AO 导出。"),
    ),
    Loss(
        paths=("scaling",),
        what=Text(
            "A configuration file cannot name torchao's recipe: it is one scale factor per tensor.",
            "配置文件无法指定 torchao 的配方：只能是每个张量一个缩放因子。",
        ),
        instead=Text("Export with --form python.", "请使用 --form python 导出。"),
    ),
    Loss(
        paths=("recipe",),
        what=Text("What is left is the recipe {after}.", "剩下的配方为 {after}。"),
    ),
    Loss(
        paths=("policy.output_dtype",),
        when=lambda request: request.options["fsdp"] != 2,
        what=Text("Accelerate converts the model's outputs to float32.", "Accelerate 会把模型输出转换为 float32。"),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text(
            "A configuration file has no policy: FSDP2 hands outputs on in {after}.",
            "配置文件中没有策略：FSDP2 以 {after} 输出。",
        ),
        instead=Text("Export with --form python.", "请使用 --form python 导出。"),
    ),
    Loss(
        paths=("reductions.reduce_dtype",),
        when=lambda request: request.options["fsdp"] != 0,
        what=Text(
            "A configuration file has no policy: FSDP sums gradients in {after}.",
            "配置文件中没有策略：FSDP 以 {after} 对梯度求和。",
        ),
        instead=Text(
            "Export with --form python, whose mixed_precision_policy says reduce_dtype.",
            "请使用 --form python 导出，其 mixed_precision_policy 写明 reduce_dtype。",
        ),
    ),
    Loss(
        paths=("reductions.reduce_dtype",),
        what=Text(
            "A configuration file has no communication hook: DistributedDataParallel sums gradients in {after}.",
            "配置文件中没有通信钩子：DistributedDataParallel 以 {after} 对梯度求和。",
        ),
        instead=Text("Export with --form python.", "请使用 --form python 导出。"),
    ),
    Loss(
        paths=("reductions.accumulate_dtype",),
        when=lambda request: request.options["fsdp"] != 0,
        what=Text(
            "In accelerator.accumulate() gradients wait unsharded, in {after}, for the last micro-batch.",
            "在 accelerator.accumulate() 中，梯度以 {after} 的未分片形式等到最后一个 micro-batch。",
        ),
        instead=Text(
            "GradientAccumulationPlugin(num_steps=…, sync_each_batch=True) sums them in the shards: float32.",
            "GradientAccumulationPlugin(num_steps=…, sync_each_batch=True) 会在分片中以 float32 累加。",
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
        when=lambda request: request.options["fsdp"] == 1,
        what=Text(
            "A configuration file has no policy: FSDP1 holds buffers in {after}.",
            "配置文件中没有策略：FSDP1 以 {after} 保存缓冲区。",
        ),
        instead=Text("Export with --form python.", "请使用 --form python 导出。"),
    ),
    Loss(
        paths=("reductions.buffer_dtype",),
        what=Text("Accelerate leaves buffers as they are: float32.", "Accelerate 不改变缓冲区：仍为 float32。"),
        instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
    ),
    Loss(
        paths=("float32_matmul",),
        what=Text("How float32 products are computed is not part of it.", "float32 乘法的计算方式不在其中。"),
        instead=Text(
            'Call torch.set_float32_matmul_precision("high") for TF32; --form python has the line.',
            '如需 TF32，请调用 torch.set_float32_matmul_precision("high")；--form python 会写出该行。',
        ),
    ),
    Loss(
        paths=(
            "loss_scale.initial_scale",
            "loss_scale.growth_factor",
            "loss_scale.backoff_factor",
            "loss_scale.growth_interval",
            "loss_scale.mode",
        ),
        when=_in_file,
        what=Text(
            "A configuration file has no loss scale: the GradScaler begins at 65536, doubles after 2000 good steps and "
            "halves at an overflow.",
            "配置文件中没有损失缩放：GradScaler 初始值 65536，连续 2000 步正常后翻倍，溢出后减半。",
        ),
        instead=Text(
            "Export with --form python, which passes GradScalerKwargs.",
            "请使用 --form python 导出，其中会传入 GradScalerKwargs。",
        ),
    ),
    *GRAD_SCALER_LOSSES,
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float16",
        what=Text(
            "Use a GPU: on a CPU fp16 is taken and everything trains in float32, without a message.",
            "请使用 GPU：在 CPU 上 fp16 会被接受，但全部以 float32 训练，且没有提示。",
        ),
        source="measured on accelerate 1.15.0",
    ),
    Remark(
        when=_is_float8,
        what=Text(
            "On NVIDIA GPUs below compute capability 8.9 (before Ada and Hopper) a warning is logged and float16 is "
            "used.",
            "在计算能力低于 8.9 的 NVIDIA GPU（Ada、Hopper 之前）上，只会记录一条警告并改用 float16。",
        ),
        source="accelerate/state.py, 1.15.0",
    ),
    Remark(
        when=lambda plan, request: _is_float8(plan, request) and request.options["fp8_backend"] == "AO",
        what=Text(
            "torchao converts linear layers whose dimensions are multiples of 16, without the first and the last; "
            "where none is left, training is plain bfloat16 autocast, without a message. Count the Float8Linear "
            "modules after accelerator.prepare().",
            "torchao 只转换维度为 16 的倍数的线性层，并跳过第一个和最后一个；如果一个都不剩，训练就是普通的 bfloat16 "
            "autocast，且没有提示。请在 accelerator.prepare() 之后统计 Float8Linear 模块数量。",
        ),
        source="accelerate/utils/ao.py, 1.15.0; measured",
    ),
    Remark(
        when=lambda plan, request: _is_float8(plan, request) and request.options["fp8_backend"] == "TE",
        what=Text(
            "TransformerEngine takes scale factors from the largest values of the last 1024 steps (DelayedScaling), "
            "gradients in E5M2 (HYBRID).",
            "TransformerEngine 的缩放因子取自最近 1024 步的最大值历史（DelayedScaling），梯度用 E5M2（HYBRID）。",
        ),
        source="accelerate/utils/dataclasses.py, 1.15.0",
    ),
    Remark(
        when=lambda plan, request: request.options["fsdp"] == 2 and plan.compute_dtype in SIXTEEN_BIT_FORMATS,
        what=Text(
            "Under FSDP2 there is no autocast: every operator computes in this format, softmax and norms too. Compute "
            "the loss on outputs in float32.",
            "FSDP2 下没有 autocast：所有算子都以该格式计算，包括 softmax 和归一化。请在 float32 输出上计算损失。",
        ),
        source="accelerate/accelerator.py `_prepare_fsdp2`, 1.15.0",
    ),
    Remark(
        when=lambda plan, request: _in_file(request),
        what=Text(
            "Start it with `accelerate launch --config_file FILE --num_processes N script.py` (with --multi_gpu for "
            "DistributedDataParallel). Accelerator(mixed_precision=...) in the script, and fp16 or bf16 of "
            "TrainingArguments, win over the file without a message.",
            "用 `accelerate launch --config_file FILE --num_processes N script.py` 启动（DistributedDataParallel 需加 "
            "--multi_gpu）。脚本中的 Accelerator(mixed_precision=...) 以及 TrainingArguments 的 fp16、bf16 "
            "会覆盖该文件，且没有提示。",
        ),
        source="accelerate/commands/launch.py and state.py, 1.15.0",
    ),
)
