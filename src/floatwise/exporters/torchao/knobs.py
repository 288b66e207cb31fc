# SPDX-License-Identifier: Apache-2.0
"""The arguments of torchao's float8 training that have to do with precision."""

from __future__ import annotations

from typing import Any

from floatwise.exporters.knob import Kind, Knob, knob_table
from floatwise.language import Text
from floatwise.plan.recipe_table import Scaling

__all__ = ["KNOBS", "RECIPES"]

_CONFIG = "torchao/float8/config.py, 0.18.0"
_CONVERT = "torchao/float8/float8_linear_utils.py, 0.18.0"
_MX = "torchao/prototype/moe_training/config.py, 0.18.0"

RECIPES: tuple[Scaling, ...] = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
"""`Float8LinearRecipeName` by value (torchao/float8/config.py; the same from 0.9.0 to 0.18.0)."""


def _row(key: str, kind: Kind, en: str, zh: str, source: str = _CONFIG, **more: Any) -> Knob:
    return Knob(key=key, kind=kind, meaning=Text(en, zh), source=source, **more)


_CASTS = (
    ("cast_config_input", "How the input is cast.", "输入如何转换。"),
    ("cast_config_input_for_grad_weight", "The input, for the weight's gradient.", "计算权重梯度时输入如何转换。"),
    ("cast_config_weight", "How the weight is cast.", "权重如何转换。"),
    ("cast_config_weight_for_grad_input", "The weight, for the input's gradient.", "计算输入梯度时权重如何转换。"),
    ("cast_config_grad_output", "How the output's gradient is cast.", "输出梯度如何转换。"),
    (
        "cast_config_grad_output_for_grad_weight",
        "The output's gradient, for the weight's gradient.",
        "计算权重梯度时输出梯度如何转换。",
    ),
    ("gemm_config_output", "How the product of the output accumulates.", "输出乘积如何累加。"),
    ("gemm_config_grad_input", "How the product of the input's gradient accumulates.", "输入梯度乘积如何累加。"),
    ("gemm_config_grad_weight", "How the product of the weight's gradient accumulates.", "权重梯度乘积如何累加。"),
)

KNOBS = knob_table(
    _row(
        "from_recipe_name.recipe_name",
        "str",
        "How many scale factors an operand has; e4m3 for gradients too in the rowwise recipes.",
        "每个操作数有多少缩放因子；rowwise 配方中梯度也用 e4m3。",
        choices=RECIPES,
    ),
    *(_row(f"Float8LinearConfig.{name}", "any", en, zh) for name, en, zh in _CASTS),
    _row(
        "Float8LinearConfig.enable_fsdp_float8_all_gather",
        "bool",
        "FSDP2 gathers weights in float8; with tensorwise scaling only.",
        "FSDP2 以 float8 收集权重；仅限 tensorwise 缩放。",
        default=False,
    ),
    _row(
        "Float8LinearConfig.pad_inner_dim",
        "bool",
        "Pads sizes that are no multiple of 16 with zeros.",
        "把不是 16 的倍数的尺寸用零补齐。",
        default=False,
    ),
    _row(
        "Float8LinearConfig.emulate",
        "bool",
        "Casts to float8 and multiplies in float32: for machines without float8 units, and slow.",
        "转换为 float8 后用 float32 相乘：用于没有 float8 单元的机器，速度慢。",
        default=False,
    ),
    _row(
        "Float8LinearConfig.force_recompute_fp8_weight_in_bwd",
        "bool",
        "Without effect since 0.10.",
        "自 0.10 起不起作用。",
        default=False,
    ),
    _row(
        "Float8LinearConfig.round_scales_to_power_of_2",
        "bool",
        "Scale factors are powers of two, so that scaling rounds nothing; on in the rowwise recipes.",
        "缩放因子取 2 的幂，缩放本身不产生舍入；rowwise 配方中默认开启。",
        default=False,
    ),
    _row("convert_to_float8_training.module", "any", "The model.", "模型。", _CONVERT),
    _row("convert_to_float8_training.config", "any", "A Float8LinearConfig.", "一个 Float8LinearConfig。", _CONVERT),
    _row(
        "convert_to_float8_training.module_filter_fn",
        "any",
        "Called with each linear layer and its path; False leaves the layer as it is. None: all are converted.",
        "对每个线性层及其路径调用；返回 False 则该层不变。None 表示全部转换。",
        _CONVERT,
        none=True,
    ),
    _row(
        "MXFP8TrainingOpConfig.kernel_preference",
        "any",
        "AUTO for Blackwell's units, EMULATED for any machine.",
        "AUTO 使用 Blackwell 的单元，EMULATED 可在任何机器上模拟。",
        _MX,
        since="0.17",
    ),
    _row(
        "MXFP8TrainingOpConfig.out_dtype",
        "any",
        "The format of products.",
        "乘积的格式。",
        _MX,
        since="0.17",
        none=True,
    ),
    _row(
        "MXFP8TrainingOpConfig.wgrad_with_hp",
        "bool",
        "Whether gradients of weights are products in high precision.",
        "权重梯度是否以高精度相乘。",
        _MX,
        since="0.17",
        default=False,
    ),
    _row(
        "MXFP8TrainingOpConfig.scale_calculation_mode",
        "any",
        "How the power of two is chosen; RCEIL never overflows.",
        "如何选取 2 的幂；RCEIL 不会溢出。",
        _MX,
        since="0.17",
    ),
    _row(
        "MXFP8TrainingOpConfig.pad_token_groups_for_grouped_mm",
        "bool",
        "Pads groups of tokens to 32; for mixtures of experts.",
        "把 token 组补齐到 32；用于混合专家模型。",
        _MX,
        since="0.17",
        default=False,
    ),
)
