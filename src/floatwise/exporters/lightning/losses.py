# SPDX-License-Identifier: Apache-2.0
"""What of a plan Lightning cannot hold, by strategy and form; what it would train wrongly; what to know besides."""

from __future__ import annotations

from floatwise.exporters.lightning.strategies import CLIPS_BY_PLUGIN
from floatwise.exporters.lightning.write import precision_of, reduced_here
from floatwise.exporters.shared_losses import GRAD_SCALER_LOSSES, RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark, Request
from floatwise.exporters.torch_source import (
    AUTOCAST_OUTPUT_LOSS,
    FLOAT32_WEIGHTS_LOSS,
    IDLE_SCALE_LOSS,
    float8_refusal,
)
from floatwise.language import Text

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]


def _deepspeed(request: Request) -> bool:
    return bool(request.options["strategy"] == "deepspeed")


def _fsdp_yaml(request: Request) -> bool:
    return bool(request.options["strategy"] == "fsdp" and request.form == "yaml")


def _fabric(request: Request) -> bool:
    return bool(request.options["class"] == "fabric")


LOSSES = (
    Loss(
        paths=("modules*",),
        what=Text(
            "Lightning knows one precision for all modules: islands are lost.",
            "Lightning 对所有模块只有一种精度：岛会丢失。",
        ),
        instead=Text(
            "Export to torch-amp too and call its `prepare` on the LightningModule in configure_model.",
            "请同时导出到 torch-amp，并在 configure_model 中对 LightningModule 调用其 `prepare`。",
        ),
    ),
    Loss(
        paths=("policy.param_dtype", "weights.master", "recipe"),
        when=_deepspeed,
        what=Text(
            "DeepSpeed keeps weights in the 16-bit format and float32 master weights beside them: from {before} to "
            "{after}.",
            "DeepSpeed 以 16 位格式保存权重，并另存 float32 主权重：由 {before} 变为 {after}。",
        ),
    ),
    FLOAT32_WEIGHTS_LOSS,
    Loss(
        paths=("policy.output_dtype",),
        when=_fabric,
        what=Text("Fabric casts the outputs of forward to float32.", "Fabric 会把 forward 的输出转换为 float32。"),
    ),
    Loss(
        paths=("policy.output_dtype",),
        when=_deepspeed,
        what=Text(
            "DeepSpeed hands outputs on in the format of its weights: {after}.",
            "DeepSpeed 的输出与权重格式相同：{after}。",
        ),
        instead=Text("Cast the outputs before the loss: outputs.float().", "在计算损失前转换输出：outputs.float()。"),
    ),
    AUTOCAST_OUTPUT_LOSS,
    Loss(
        paths=("reductions.*",),
        when=_deepspeed,
        what=Text(
            "DeepSpeed sums gradients over processes and batches in the format of its weights, and leaves buffers in "
            "float32: here {after}.",
            "DeepSpeed 以权重的格式对梯度做跨进程与跨批求和，缓冲区保持 float32：此处为 {after}。",
        ),
        instead=Text(
            "DeepSpeedStrategy(config=...) takes communication_data_type and data_types: export to deepspeed.",
            "DeepSpeedStrategy(config=...) 支持 communication_data_type 与 data_types：请导出到 deepspeed。",
        ),
    ),
    Loss(
        paths=("reductions.reduce_dtype", "reductions.buffer_dtype"),
        when=_fsdp_yaml,
        what=Text(
            "The text of precision sets one format for compute, reduction and buffers: {after}.",
            "precision 文本为计算、归约与缓冲区设置同一种格式：{after}。",
        ),
        instead=Text(
            "The Python form gives FSDPStrategy a MixedPrecision of its own.",
            "Python 形式会给 FSDPStrategy 传入单独的 MixedPrecision。",
        ),
    ),
    Loss(
        paths=("reductions.reduce_dtype",),
        what=Text("Gradients are summed over processes in {after}.", "梯度以 {after} 跨进程求和。"),
        instead=Text(
            "Trainer in Python with the strategy ddp (on GPUs) takes a communication hook; for model_parallel give "
            "fully_shard a MixedPrecisionPolicy: export to fsdp2.",
            "在 Python 中使用 ddp 策略（GPU）的 Trainer 可设置通信钩子；对 model_parallel，请为 fully_shard 传入 "
            "MixedPrecisionPolicy：导出到 fsdp2。",
        ),
    ),
    Loss(
        paths=("reductions.accumulate_dtype",),
        what=Text(
            "Gradients of float32 weights are summed over batches in float32.",
            "float32 权重的梯度以 float32 跨批累加。",
        ),
    ),
    Loss(
        paths=("reductions.buffer_dtype",),
        what=Text("Lightning leaves buffers as they are: float32.", "Lightning 不改变缓冲区：仍为 float32。"),
        instead=Text("Cast the buffers yourself.", "请自行转换缓冲区。"),
    ),
    Loss(
        paths=("float32_matmul",),
        when=lambda request: request.form == "yaml",
        what=Text("How float32 products are computed is not part of the YAML.", "float32 乘法的计算方式不在 YAML 中。"),
        instead=Text(
            'Call torch.set_float32_matmul_precision("high") for TF32.',
            '如需 TF32，请调用 torch.set_float32_matmul_precision("high")。',
        ),
    ),
    IDLE_SCALE_LOSS,
    Loss(
        paths=("loss_scale.initial_scale", "loss_scale.floor"),
        when=_deepspeed,
        what=Text(
            "DeepSpeed starts from a power of two of 1 or more and stops at a whole number: {before} becomes {after}.",
            "DeepSpeed 的初始值是不小于 1 的 2 的幂，下限是整数：{before} 变为 {after}。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth_factor", "loss_scale.backoff_factor", "loss_scale.ceiling", "loss_scale.growth"),
        when=_deepspeed,
        what=Text(
            "DeepSpeed doubles and halves its scale, without looking for room and without a ceiling.",
            "DeepSpeed 的缩放系数只会翻倍或减半，不看是否留有余量，也没有上限。",
        ),
    ),
    Loss(
        paths=("loss_scale.headroom_bits",),
        when=_deepspeed,
        what=Text("DeepSpeed does not look for room.", "DeepSpeed 不看是否留有余量。"),
    ),
    Loss(
        paths=(
            "loss_scale.initial_scale",
            "loss_scale.growth_factor",
            "loss_scale.backoff_factor",
            "loss_scale.growth_interval",
            "loss_scale.mode",
        ),
        when=_fsdp_yaml,
        what=Text(
            "YAML cannot hand FSDP a scaler: PyTorch's defaults hold, here {after}.",
            "YAML 无法给 FSDP 传入 scaler：采用 PyTorch 的默认值，此处为 {after}。",
        ),
        instead=Text("The Python form sets it.", "Python 形式会设置它。"),
    ),
    *GRAD_SCALER_LOSSES,
    *RECORD_LOSSES,
)

REFUSALS = (
    float8_refusal("Lightning", "lightning/fabric/plugins/precision/precision.py, 2.6.6"),
    Refusal(
        when=lambda plan, request: request.options["strategy"] == "model_parallel",
        what=Text("There is no ModelParallelStrategy.", "没有 ModelParallelStrategy。"),
        instead=Text("Upgrade to 2.3, or take the strategy fsdp.", "升级到 2.3，或使用策略 fsdp。"),
        source="Lightning's CHANGELOG.md, 2.3.0",
        until="2.3",
    ),
    Refusal(
        when=lambda plan, request: (
            request.options["device"] == "cpu" and request.options["strategy"] in ("fsdp", "deepspeed")
        ),
        what=Text(
            "Lightning has the strategies fsdp and deepspeed for GPUs only.",
            "Lightning 的 fsdp 与 deepspeed 策略只支持 GPU。",
        ),
        instead=Text("Take ddp or model_parallel on CPU.", "在 CPU 上请使用 ddp 或 model_parallel。"),
        source="lightning/pytorch/trainer/connectors/accelerator_connector.py, 2.6.6; measured",
    ),
    Refusal(
        when=lambda plan, request: request.form == "yaml" and request.options["class"] == "fabric",
        what=Text("Fabric reads no YAML.", "Fabric 不读取 YAML。"),
        instead=Text("Take the Python form.", "请使用 Python 形式。"),
        source="lightning/fabric/fabric.py, 2.6.6",
    ),
    Refusal(
        when=lambda plan, request: (
            plan.compute_dtype in ("float32", "bfloat16") and reduced_here(plan, request) == "float16"
        ),
        what=Text(
            "Lightning scales the loss for 16-mixed only: gradients reduced in float16 would lose small values.",
            "Lightning 仅对 16-mixed 做损失缩放：以 float16 归约的梯度会丢失小值。",
        ),
        instead=Text("Reduce in bfloat16 or float32.", "请以 bfloat16 或 float32 归约。"),
        source="lightning/pytorch/plugins/precision/amp.py and fsdp.py, 2.6.6",
    ),
)

REMARKS = (
    Remark(
        when=lambda plan, request: (
            precision_of(plan).endswith("mixed")
            and request.options["class"] == "trainer"
            and request.options["strategy"] in CLIPS_BY_PLUGIN
        ),
        what=Text(
            "gradient_clip_val with a fused optimizer raises RuntimeError, in bf16-mixed too.",
            "gradient_clip_val 与 fused 优化器一起使用会抛出 RuntimeError，bf16-mixed 也不例外。",
        ),
        source="lightning/pytorch/plugins/precision/amp.py, 2.6.6; Lightning-AI/pytorch-lightning#21435; measured",
    ),
    Remark(
        when=lambda plan, request: (
            plan.loss_scale is not None
            and plan.loss_scale.hysteresis > 1
            and request.options["strategy"] == "deepspeed"
        ),
        what=Text(
            "DeepSpeed counts overflows with good steps between them too, until the scale grows.",
            "DeepSpeed 也会计入中间隔有正常步的溢出，直到缩放系数增大。",
        ),
        source="deepspeed/runtime/fp16/loss_scaler.py, 0.19.8",
    ),
    Remark(
        when=lambda plan, request: request.options["strategy"] == "model_parallel",
        what=Text(
            "Shard in configure_model without a MixedPrecisionPolicy: autocast lowers the products. Of itself the "
            "strategy is tensor parallel within a node: for FSDP2 set data_parallel_size.",
            "在 configure_model 中分片时不要传入 MixedPrecisionPolicy：由 autocast 降低乘法精度。"
            "该策略默认在节点内做张量并行：如需 FSDP2，请设置 data_parallel_size。",
        ),
        source="lightning/pytorch/strategies/model_parallel.py, 2.6.6; measured",
    ),
)
