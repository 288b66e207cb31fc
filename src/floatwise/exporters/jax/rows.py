# SPDX-License-Identifier: Apache-2.0
"""What JAX and Flax cannot hold of a plan, and what to know about them."""

from __future__ import annotations

from floatwise.exporters.shared_losses import RECORD_LOSSES
from floatwise.exporters.system import Loss, Refusal, Remark
from floatwise.language import Text
from floatwise.plan.dtypes import FLOAT8_FORMATS, SIXTEEN_BIT_FORMATS

__all__ = ["LOSSES", "REFUSALS", "REMARKS"]

_FLAX = "flax/training/dynamic_scale.py, 0.12.8"

REFUSALS = (
    Refusal(
        when=lambda plan, request: plan.compute_dtype in FLOAT8_FORMATS,
        what=Text("No dtype of a Flax module makes float8 products.", "Flax 模块的 dtype 不能表示 float8 乘法。"),
        instead=Text(
            "Export recipe bf16-mixed, and give modules dot_general_cls=flax.linen.Fp8DirectDotGeneralOp, which is "
            "tensorwise with factors of earlier steps; or use Qwix.",
            "请导出 bf16-mixed 配方，并给模块设置 dot_general_cls=flax.linen.Fp8DirectDotGeneralOp"
            "（每个张量一个因子，取自之前的步）；或使用 Qwix。",
        ),
        source="flax/linen/fp8_ops.py, 0.12.8",
    ),
)

LOSSES = (
    Loss(
        paths=("modules*.policy.output_dtype",),
        what=Text(
            "A module hands its output on in the format it computes in, {after}.",
            "模块以其计算格式 {after} 输出。",
        ),
    ),
    Loss(
        paths=("modules*.policy.param_dtype", "policy.param_dtype", "weights.master", "recipe"),
        what=Text(
            "Weights stay in float32, which need no master weights: optax drops small updates of 16-bit weights.",
            "权重保持 float32，无需主权重：optax 对 16 位权重的小更新会丢失。",
        ),
    ),
    Loss(
        paths=("reductions*",),
        what=Text(
            "Gradients have the weights' format, float32, and are summed in it; batch statistics are float32.",
            "梯度与权重同为 float32，并以此累加和归约；批统计量为 float32。",
        ),
        instead=Text("Cast gradients around jax.lax.pmean.", "在 jax.lax.pmean 前后转换梯度。"),
    ),
    Loss(
        paths=("loss_scale.mode", "loss_scale.growth_interval"),
        what=Text(
            "DynamicScale has no static scale: growth is put off beyond any training, and an overflow still halves it.",
            "DynamicScale 没有静态缩放：增大被推迟到训练结束之后，但溢出仍会使其减小。",
        ),
        instead=Text("Use jmp.StaticLossScale.", "使用 jmp.StaticLossScale。"),
    ),
    Loss(
        paths=("loss_scale.floor",),
        what=Text("The floor is not above the first scale, {after}.", "下限不高于初始系数 {after}。"),
    ),
    Loss(
        paths=("loss_scale.ceiling", "loss_scale.growth", "loss_scale.headroom_bits"),
        what=Text(
            "The scale grows after every growth_interval good steps without looking for room and without a ceiling.",
            "每连续 growth_interval 步正常就增大，不看是否留有余量，也没有上限。",
        ),
    ),
    Loss(
        paths=("loss_scale.hysteresis",),
        what=Text(
            "The scale backs off at the first overflow; the plan waits for {before} in a row.",
            "首次溢出就减小系数；计划要求连续 {before} 次。",
        ),
    ),
    *RECORD_LOSSES,
)

REMARKS = (
    Remark(
        when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
        what=Text(
            "One float32 array, such as jnp.ones(8) or np.sqrt(8), turns all that follows into float32 without a word: "
            'run once under jax.numpy_dtype_promotion("strict"), which raises there.',
            "一个 float32 数组（如 jnp.ones(8) 或 np.sqrt(8)）会悄悄使后续计算全变为 float32："
            '请在 jax.numpy_dtype_promotion("strict") 下运行一次，它会在该处报错。',
        ),
        source="measured on jax 0.10.2",
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype == "float16",
        what=Text(
            "DynamicScale does not skip the step: keep the old weights and optimizer state where is_finite is False.",
            "DynamicScale 不会自动跳过该步：is_finite 为 False 时请保留原权重和优化器状态。",
        ),
        source=_FLAX,
    ),
    Remark(
        when=lambda plan, request: plan.compute_dtype in SIXTEEN_BIT_FORMATS,
        what=Text(
            "A CPU computes float16 products in float32, and bfloat16 is often slower than float32 there.",
            "CPU 以 float32 计算 float16 乘法，bfloat16 在 CPU 上也常比 float32 慢。",
        ),
        source="compiled HLO, jax 0.10.2; training steps timed on jax 0.12",
    ),
)
