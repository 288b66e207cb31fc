# SPDX-License-Identifier: Apache-2.0
"""What Keras cannot hold of a plan, and what to know about its backends."""

from __future__ import annotations

from floatwise.exporters.keras.knobs import KERAS_3, MAP_SINCE
from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark, Request
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_LSO = "keras/src/optimizers/loss_scale_optimizer.py, 3.15.1"


def _has_map(request: Request) -> bool:
    return request.version.within(MAP_SINCE, "")


REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text(
            'No policy is float8 from the start: "float8_from_mixed_bfloat16" as the global policy fails in '
            "Functional.call().",
            '没有从一开始就使用 float8 的策略："float8_from_mixed_bfloat16" 作为全局策略会在 '
            "Functional.call() 中报错。",
        ),
        instead=Text(
            'Export recipe bf16-mixed, and call model.quantize("float8") on the built model: Dense and EinsumDense '
            "then multiply in float8 with one scale factor per tensor, of earlier steps.",
            '请导出 bf16-mixed 配方，并对已构建的模型调用 model.quantize("float8")：Dense 和 EinsumDense 会以 float8 '
            "相乘，每个张量一个缩放因子，取自之前的步。",
        ),
        source="measured on keras 3.15.1, TensorFlow and JAX backends",
    ),
)

LOSSES = (
    Loss(
        paths=("modules*",),
        when=lambda request: not _has_map(request),
        what=Text("This version has no map of policies: islands are lost.", "该版本没有策略映射：岛会丢失。"),
        instead=Text('Give these layers dtype="float32" where they are made.', '在创建这些层时设置 dtype="float32"。'),
    ),
    Loss(
        paths=('modules[[]"(root)"]*',),
        what=Text("A map has no path for the outermost model.", "策略映射中没有最外层模型的路径。"),
        instead=Text("Set the default policy instead.", "请改为设置默认策略。"),
    ),
    Loss(
        paths=("modules*.policy.output_dtype",),
        what=Text(
            "A layer hands its output on in the format it computes in, {after}; the next one casts it.",
            "层以其计算格式 {after} 输出；下一层会转换。",
        ),
    ),
    Loss(
        paths=("modules*.policy.param_dtype", "policy.param_dtype", "weights.master", "recipe"),
        what=Text(
            "Variables stay in float32, which need no master weights: Keras has none for 16-bit variables.",
            "变量保持 float32，无需主权重：Keras 没有 16 位变量的主权重。",
        ),
    ),
    Loss(
        paths=("policy.output_dtype",),
        what=Text("Outputs leave in {after}.", "输出的格式为 {after}。"),
        instead=Text(
            'End the model with keras.layers.Activation("linear", dtype=...).',
            '在模型末尾加上 keras.layers.Activation("linear", dtype=...)。',
        ),
    ),
    Loss(
        paths=("float32_matmul",),
        what=Text(
            "How float32 products are computed is the backend's: TensorFlow and JAX use TF32 where the GPU has it.",
            "float32 乘法的计算方式由后端决定：TensorFlow 和 JAX 在支持的 GPU 上使用 TF32。",
        ),
        instead=Text(
            "Call tf.config.experimental.enable_tensor_float_32_execution(True), "
            'jax.config.update("jax_default_matmul_precision", "tensorfloat32") or '
            'torch.set_float32_matmul_precision("high").',
            "调用 tf.config.experimental.enable_tensor_float_32_execution(True)、"
            'jax.config.update("jax_default_matmul_precision", "tensorfloat32") 或 '
            'torch.set_float32_matmul_precision("high")。',
        ),
    ),
    Loss(
        paths=("reductions*",),
        what=Text(
            "Gradients and buffers have the variables' format, float32, and are summed in it.",
            "梯度和缓冲区与变量同为 float32，并以此累加和归约。",
        ),
    ),
    Loss(
        paths=("loss_scale.mode", "loss_scale.growth_interval"),
        what=Text(
            "A scale that stays as it is: growth is put off beyond any training, and an overflow still halves it.",
            "固定的缩放系数：增大被推迟到训练结束之后，但溢出仍会使其减半。",
        ),
        instead=Text(
            "SGD(..., loss_scale_factor=1024.0) with compile(auto_scale_loss=False) never moves it, and skips no step.",
            "SGD(..., loss_scale_factor=1024.0) 配合 compile(auto_scale_loss=False) 可使其不变，但不会跳过任何一步。",
        ),
    ),
    Loss(
        paths=("loss_scale.growth_factor", "loss_scale.backoff_factor"),
        what=Text("The scale doubles and halves: 2.0 and 0.5 are fixed.", "缩放系数只翻倍和减半：固定为 2.0 和 0.5。"),
    ),
    Loss(
        paths=("loss_scale.floor",),
        when=lambda request: request.version.within(KERAS_3, ""),
        what=Text(
            "The scale has no floor: after some 150 overflows in a row it is 0, and the next step writes NaN into the "
            "weights.",
            "缩放系数没有下限：连续约 150 次溢出后会降到 0，下一步就会把 NaN 写入权重。",
        ),
        instead=Text(
            "Stop training from a callback when optimizer.dynamic_scale falls below 1.",
            "用回调在 optimizer.dynamic_scale 低于 1 时停止训练。",
        ),
    ),
    Loss(
        paths=("loss_scale.floor",),
        what=Text("The floor of the scale is 1.", "缩放系数的下限为 1。"),
    ),
    Loss(
        paths=("loss_scale.ceiling", "loss_scale.growth", "loss_scale.headroom_bits"),
        what=Text(
            "The scale doubles after dynamic_growth_steps good steps without looking for room and without a ceiling.",
            "每连续 dynamic_growth_steps 步正常就翻倍，不看是否留有余量，也没有上限。",
        ),
    ),
    Loss(
        paths=("loss_scale.hysteresis",),
        what=Text(
            "The scale halves at the first overflow; the plan waits for {before} in a row.",
            "首次溢出就减半；计划要求连续 {before} 次。",
        ),
    ),
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float16",
        what=Text(
            "Inputs are cast to float16 before a layer's call(): Normalization and Rescaling of values above 65504 "
            'give inf. Give such layers dtype="float32".',
            "输入在层的 call() 之前就转换为 float16：对大于 65504 的值做 Normalization 或 Rescaling 会得到 inf。"
            '请给这些层设置 dtype="float32"。',
        ),
        source="measured on keras 3.15.1",
        since=KERAS_3,
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float16",
        what=Text(
            "A model that is saved under this policy and loaded under another has no LossScaleOptimizer, and its "
            "optimizer's state is dropped with a warning: import this file before loading.",
            "在该策略下保存、在其他策略下加载的模型没有 LossScaleOptimizer，优化器状态也会被丢弃（仅警告）："
            "加载前请先导入本文件。",
        ),
        source="measured on keras 3.15.1",
        since=KERAS_3,
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float32" and plan.float32_matmul == "ieee",
        what=Text(
            "On GPUs with TF32 the TensorFlow and JAX backends use it for float32: turn it off for the last 13 bits.",
            "在支持 TF32 的 GPU 上，TensorFlow 和 JAX 后端会用它计算 float32：如需完整精度请关闭。",
        ),
        source="tf.config.experimental.tensor_float_32_execution_enabled() is True by default, tensorflow 2.21",
    ),
)
