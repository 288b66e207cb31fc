# SPDX-License-Identifier: Apache-2.0
"""The keys of DeepSpeed's fp16 and bf16 tables."""

from __future__ import annotations

from typing import Any

from floatwise.exporters.knob import Kind, Knob
from floatwise.language import Text

__all__ = ["BLOCK_KNOBS", "MAX_SCALE_POWER", "TRUTH"]

_SOURCE = "runtime/precision_config.py, 0.19.8"

TRUTH = 'in quotes "false" counts as true in torch_autocast, and Trainer refuses texts in the other tables'
"""Why texts are refused where DeepSpeed takes some of them for a truth value (measured on 0.19.8)."""

MAX_SCALE_POWER = 32
"""The largest exponent of the first loss scale taken here. It is the one DeepSpeed starts from by itself where it is
given no arguments (fp16/loss_scaler.py, profile `fused`), and Megatron's default. At the start every power too many
costs one skipped step, the first one `hysteresis` steps, and DeepSpeed sets no limit: 40 loses the first 26 steps
(measured)."""


def _row(key: str, kind: Kind, default: Any, en: str, zh: str, **more: Any) -> Knob:
    return Knob(key=key, kind=kind, default=default, meaning=Text(en, zh), **{"source": _SOURCE, **more})


def _fp16() -> tuple[Knob, ...]:
    scaler = "runtime/precision_config.py and runtime/fp16/loss_scaler.py, 0.19.8; measured"
    return (
        _row(
            "fp16.enabled",
            "bool",
            False,
            "Weights and gradients are float16, with float32 master weights and a loss scale.",
            "权重和梯度为 float16，带 float32 主权重和损失缩放。",
            why=TRUTH,
            auto=True,
        ),
        _row(
            "fp16.auto_cast",
            "bool",
            False,
            "Positional floating inputs of forward are cast to float16.",
            "forward 的浮点位置参数转换为 float16。",
            why=TRUTH,
        ),
        _row(
            "fp16.loss_scale",
            "float",
            0,
            "0: the scale follows overflows; more: this scale always, and every overflow skips its step.",
            "0 为动态缩放；大于 0 则固定为该值，每次溢出都会跳过一步。",
            minimum=0,
            maximum=2.0**MAX_SCALE_POWER,
            why="0 stands for a dynamic scale, and float16 ends at 65504: larger scales overflow at every step",
        ),
        _row(
            "fp16.initial_scale_power",
            "int",
            16,
            "The first scale is 2 to this power.",
            "初始缩放系数为 2 的该次幂。",
            minimum=0,
            maximum=MAX_SCALE_POWER,
            why="DeepSpeed takes any: 40 loses the first 26 steps to overflows, and below 0 the scale starts under "
            "min_loss_scale",
            source=scaler,
        ),
        _row(
            "fp16.loss_scale_window",
            "int",
            1000,
            "Steps without overflow before the scale doubles.",
            "缩放系数加倍之前需要连续无溢出的步数。",
            minimum=1,
            below=2**31,
            why="DeepSpeed divides by it: 0 ends the run in 0.19.2 and older, and is refused since 0.19.3",
            source=scaler,
        ),
        _row(
            "fp16.hysteresis",
            "int",
            2,
            "How many overflows it takes until the scale halves; counted anew when it grows, or after every good step "
            "where consecutive_hysteresis is true.",
            "缩放系数减半所需的溢出次数；增大时重新计数，consecutive_hysteresis 为 true 时每个正常步后重新计数。",
            minimum=1,
            below=2**24,
            why="0 is accepted and counts down from there: the scale never falls, and every step is skipped",
            source=scaler,
        ),
        _row(
            "fp16.consecutive_hysteresis",
            "bool",
            False,
            "Only overflows in a row count for hysteresis.",
            "仅连续溢出才计入 hysteresis。",
            why=TRUTH,
            source=scaler,
        ),
        _row(
            "fp16.min_loss_scale",
            "int",
            1,
            "The scale falls no lower; an overflow there ends the run (ZeRO stages 1 to 3).",
            "缩放系数的下限；在下限处再次溢出会终止训练（ZeRO stage 1 至 3）。",
            minimum=1,
            why="DeepSpeed refuses fractions such as 0.25 since 0.17.1, and 0 or less since 0.19.3",
            source=scaler,
        ),
        _row(
            "fp16.fp16_master_weights_and_grads",
            "bool",
            False,
            "The optimizer updates float16 weights: there is no float32 copy. It needs DeepSpeedCPUAdam with offload.",
            "优化器直接更新 float16 权重：没有 float32 副本。需要 DeepSpeedCPUAdam 与 offload。",
            why=TRUTH,
        ),
    )


def _bf16(table: str) -> tuple[Knob, ...]:
    pydantic = "runtime/precision_config.py, 0.19.8; tags v0.18.2 and v0.18.3"
    return (
        _row(
            f"{table}.enabled",
            "bool",
            False,
            "Weights and gradients are bfloat16, with float32 master weights.",
            "权重和梯度为 bfloat16，带 float32 主权重。",
            why=TRUTH,
            auto=True,
        ),
        _row(
            f"{table}.immediate_grad_update",
            "bool",
            False,
            "Gradients are added to the float32 sum as they arise (stage 1 with float32 sums).",
            "梯度产生后立即累加到 float32（stage 1 且 float32 累加）。",
            why=TRUTH,
        ),
        _row(
            f"{table}.check_grad_overflow",
            "bool",
            True,
            "A step with an infinite or NaN gradient is skipped (ZeRO stages 1 and 2; the others always do). The "
            "default was false before 0.19.3.",
            "梯度含无穷或 NaN 时跳过该步（ZeRO stage 1、2；其余总是如此）。0.19.3 之前默认为 false。",
            why=TRUTH,
            since="0.17.1",
            instead="delete it",
            source="runtime/precision_config.py, tags v0.17.1 to v0.19.5 and 0.19.8; measured",
        ),
        _row(
            f"{table}.bf16_master_weights_and_grads",
            "bool",
            False,
            "The optimizer updates bfloat16 weights: there is no float32 copy. It needs bf16_optimizer_states, or "
            "DeepSpeedCPUAdam with offload; and it does nothing at stage 1 with float32 sums.",
            "优化器直接更新 bfloat16 权重：没有 float32 副本。需要 bf16_optimizer_states，或 DeepSpeedCPUAdam 与 "
            "offload；stage 1 且 float32 累加时不起作用。",
            why=TRUTH,
            since="0.18.3",
            instead="delete it",
            source=pydantic,
        ),
        _row(
            f"{table}.bf16_optimizer_states",
            "bool",
            False,
            "The optimizer's moments are bfloat16 as well.",
            "优化器动量也为 bfloat16。",
            why=TRUTH,
            since="0.18.3",
            instead="delete it",
            source=pydantic,
        ),
    )


BLOCK_KNOBS = (*_fp16(), *_bf16("bf16"), *_bf16("bfloat16"))
"""The rows of fp16, of bf16, and of bfloat16, which is read where there is no bf16."""
