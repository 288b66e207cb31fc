# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's precision flags, by the names its parser gives them, with the versions that have them."""

from __future__ import annotations

from typing import Any

from floatwise.exporters.flag_knob import FlagKnob
from floatwise.exporters.knob import Kind, knob_table
from floatwise.language import Text

__all__ = ["KNOBS", "READ_VERSION", "REMAINDERS_SINCE"]

READ_VERSION = "0.19.0"
"""The version whose parser the rows were checked with; they hold for 0.12.0, 0.16.1 and the 0.20 branch as marked."""

REMAINDERS_SINCE = "0.13"
"""First version whose precision-aware optimizer keeps the 16 trailing bits (`store_param_remainders`).

Source: megatron/core/optimizer/optimizer_config.py, tags core_v0.12.0 and core_v0.13.0.
"""

_SOURCE = "megatron/training/arguments.py, tags core_v0.12.0 to core_v0.19.0"


def _row(key: str, kind: Kind, en: str, zh: str, **more: Any) -> FlagKnob:
    return FlagKnob(key=key, kind=kind, meaning=Text(en, zh), source=_SOURCE, **more)


def _switch(key: str, en: str, zh: str, **more: Any) -> FlagKnob:
    return _row(key, "bool", en, zh, default=False, **more)


_SCALE = (
    _row("loss_scale", "float", "A scale that stays as it is.", "固定不变的缩放系数。", above=0),
    _row(
        "initial_loss_scale",
        "float",
        "The scale of the first step.",
        "第一步的缩放系数。",
        above=0,
        maximum=2.0**127,
        default=2.0**32,
    ),
    _row(
        "min_loss_scale",
        "float",
        "The scale below which backing off stops.",
        "缩放系数的下限。",
        above=0,
        default=1.0,
        why="the scaler asserts that it is above 0",
    ),
    _row(
        "loss_scale_window",
        "float",
        "Good steps in a row before the scale doubles.",
        "缩放系数翻倍前需要连续正常的步数。",
        minimum=1,
        below=2**31,
        default=1000,
    ),
    _row(
        "hysteresis",
        "int",
        "Overflows before the scale halves; the count starts anew when the scale grows.",
        "缩放系数减半前容许的溢出次数；系数增大时重新计数。",
        minimum=1,
        below=2**24,
        default=2,
    ),
)

_SUMS = (
    _switch(
        "accumulate_allreduce_grads_in_fp32",
        "Gradients are summed over batches and processes in float32; --bf16 turns it on.",
        "梯度以 float32 跨批累加并跨进程归约；--bf16 会自动开启。",
    ),
    _switch(
        "grad_reduce_in_bf16",
        "With --bf16: gradients are summed in bfloat16; it beats the flag above.",
        "与 --bf16 同用：梯度以 bfloat16 累加和归约；优先于上一项。",
    ),
)

_OPTIMIZER = (
    _switch("use_distributed_optimizer", "Shards optimizer states over processes.", "把优化器状态分片到各进程。"),
    _switch(
        "use_precision_aware_optimizer",
        "TransformerEngine's FusedAdam keeps states in formats of choice; for bfloat16 weights it keeps the 16 "
        "trailing bits of float32 instead of a copy.",
        "由 TransformerEngine 的 FusedAdam 以指定格式保存状态；对 bfloat16 权重只保存 float32 的低 16 位而不是副本。",
    ),
    _row(
        "main_grads_dtype",
        "str",
        "The format of accumulated gradients.",
        "累加梯度的格式。",
        choices=("fp32", "bf16"),
        default="fp32",
    ),
    _row(
        "main_params_dtype",
        "str",
        "The format of master weights; fp16 has a scale factor of its own.",
        "主权重的格式；fp16 带有自己的缩放因子。",
        choices=("fp32", "fp16"),
        default="fp32",
    ),
    *(
        _row(
            name,
            "str",
            "The format of Adam's moment.",
            "Adam 动量的格式。",
            choices=("fp32", "fp16", "bf16", "fp8"),
            default="fp32",
        )
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    ),
    _row("optimizer", "str", "The optimizer.", "优化器。", default="adam"),
)

_FLOAT8 = (
    _row(
        "fp8_format",
        "str",
        "e4m3: for gradients too; hybrid: e5m2 for gradients.",
        "e4m3：梯度也用 e4m3；hybrid：梯度用 e5m2。",
        choices=("e4m3", "hybrid"),
    ),
    _row(
        "fp8_recipe",
        "str",
        "How many scale factors an operand has, and from which step.",
        "每个操作数有多少缩放因子，以及取自哪一步。",
        choices=("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
        default="delayed",
    ),
    _row("fp8_margin", "int", "Powers of two left free above amax.", "在 amax 之上留出的 2 的幂次。", default=0),
    _row("fp8_interval", "int", "Without effect.", "不起作用。", default=1),
    _row(
        "fp8_amax_history_len",
        "int",
        "Steps whose largest magnitudes decide the scale factor; TransformerEngine's own default is 1024.",
        "决定缩放因子所用的历史步数；TransformerEngine 自身的默认值为 1024。",
        minimum=1,
        default=1,
    ),
    _row(
        "fp8_amax_compute_algo",
        "str",
        "Takes the newest or the largest of the history.",
        "取历史中的最新值或最大值。",
        choices=("most_recent", "max"),
        default="most_recent",
    ),
    _switch("fp8_param_gather", "Weights are kept and gathered in float8.", "权重以 float8 保存和收集。"),
    _switch(
        "reuse_grad_buf_for_mxfp8_param_ag",
        "Gathers MXFP8 weights in the gradients' memory.",
        "在梯度的内存中收集 MXFP8 权重。",
        since="0.13",
    ),
    _switch("first_last_layers_bf16", "The outer blocks stay in bfloat16.", "首尾若干块保持 bfloat16。"),
    _row("num_layers_at_start_in_bf16", "int", "How many at the start.", "开头的块数。", minimum=0, default=1),
    _row("num_layers_at_end_in_bf16", "int", "How many at the end.", "结尾的块数。", minimum=0, default=1),
    _row("fp4_format", "str", "4-bit operands.", "4 位操作数。", choices=("e2m1",), since="0.15"),
)

KNOBS = knob_table(
    _switch("fp16", "The model is float16, its master weights float32.", "模型为 float16，主权重为 float32。"),
    _switch("bf16", "The model is bfloat16, its master weights float32.", "模型为 bfloat16，主权重为 float32。"),
    *_SCALE,
    *_SUMS,
    *_OPTIMIZER,
    *_FLOAT8,
    _switch("attention_softmax_in_fp32", "Softmax of attention in float32.", "注意力的 softmax 使用 float32。"),
    _switch("fp32_residual_connection", "The residual stream is float32.", "残差流保持 float32。"),
    _switch(
        "fp16_lm_cross_entropy", "The loss is computed in float16; with --fp16.", "损失以 float16 计算；需 --fp16。"
    ),
    _switch("use_torch_fsdp2", "Shards by PyTorch's FSDP2.", "用 PyTorch 的 FSDP2 分片。"),
    _switch("use_megatron_fsdp", "Shards by Megatron's FSDP.", "用 Megatron 的 FSDP 分片。", since="0.14"),
    _switch("overlap_param_gather", "Gathers weights during forward.", "前向期间收集权重。"),
    _switch("overlap_grad_reduce", "Reduces gradients during backward.", "反向期间归约梯度。"),
)
