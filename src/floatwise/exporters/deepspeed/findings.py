# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed accepts and trains wrongly, or not as people expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from floatwise.exporters.deepspeed.facts import Facts
from floatwise.exporters.deepspeed.modes import Mode
from floatwise.exporters.system import Finding
from floatwise.language import Text
from floatwise.plan.problems import Loc

__all__ = ["findings_of"]

_FLOAT16_AUTOCAST = Mode("autocast", "float16")
# The first scale above which a finding says what it costs: 2^16 is DeepSpeed's default, and float16 ends at 2^16.
_USUAL_POWER = 24


@dataclass(frozen=True)
class _Danger:
    """A finding and when it holds; `loc` may depend on the facts."""

    code: str
    when: Callable[[Facts], bool]
    what: Text
    do: Text
    loc: Callable[[Facts], Loc]


def findings_of(facts: Facts) -> Iterator[Finding]:
    """Yields what is dangerous in a configuration."""
    for row in _DANGERS:
        if row.when(facts):
            yield Finding(row.code, row.loc(facts), row.what, row.do)


def _at(*keys: str) -> Callable[[Facts], Loc]:
    return lambda facts: keys


def _left_to_others(facts: Facts) -> bool:
    return "auto" in (facts.settings.get("fp16", "enabled"), facts.settings.get(facts.bf16, "enabled"))


def _dynamic(facts: Facts) -> bool:
    return facts.mode == Mode("stored", "float16") and not facts.get("fp16", "loss_scale", default=0)


_DANGERS = (
    _Danger(
        "loss-not-scaled",
        lambda facts: facts.fp16_without_scale,
        Text(
            "fp16 at ZeRO stage 0: since DeepSpeed 0.18.3 the loss is not scaled, yet gradients are divided by the "
            "scale, so that updates are 65536 times too small (deepspeedai/DeepSpeed#8393; measured on 0.19.8).",
            "ZeRO stage 0 下使用 fp16：自 DeepSpeed 0.18.3 起损失没有缩放，梯度却仍除以缩放系数，更新量缩小为 1/65536"
            "（deepspeedai/DeepSpeed#8393；0.19.8 上实测）。",
        ),
        Text("Set zero_optimization.stage to 1 or more.", "将 zero_optimization.stage 设为 1 或以上。"),
        _at("fp16", "enabled"),
    ),
    _Danger(
        "gradients-divided",
        lambda facts: facts.bf16_divided,
        Text(
            "bf16 at ZeRO stage 0: DeepSpeed 0.18.3 to 0.18.5 divide gradients by 65536 (deepspeedai/DeepSpeed#7837).",
            "ZeRO stage 0 下使用 bf16：DeepSpeed 0.18.3 至 0.18.5 会把梯度除以 65536（deepspeedai/DeepSpeed#7837）。",
        ),
        Text(
            "Set zero_optimization.stage to 1 or more, or upgrade to 0.18.6.",
            "将 zero_optimization.stage 设为 1 或以上，或升级到 0.18.6。",
        ),
        lambda facts: (facts.bf16, "enabled"),
    ),
    _Danger(
        "scale-never-falls",
        lambda facts: facts.mode == _FLOAT16_AUTOCAST and facts.stage > 0,
        Text(
            "torch_autocast in float16 with ZeRO: an overflow skips the step and never lowers the scale, so that every "
            "later step is skipped as well (measured on 0.19.8).",
            "torch_autocast 使用 float16 且启用 ZeRO：溢出会跳过该步，但从不减小缩放系数，此后每一步都被跳过"
            "（0.19.8 上实测）。",
        ),
        Text(
            'Write "dtype": "bfloat16", use the fp16 table instead, or set zero_optimization.stage to 0.',
            '改为 "dtype": "bfloat16"，或改用 fp16 表，或将 zero_optimization.stage 设为 0。',
        ),
        _at("torch_autocast", "dtype"),
    ),
    _Danger(
        "clips-scaled-gradients",
        lambda facts: facts.mode == _FLOAT16_AUTOCAST and facts.stage > 0 and facts.clips,
        Text(
            "torch_autocast in float16 with ZeRO: gradient_clipping acts on gradients that are still multiplied by "
            "the loss scale, so that updates are about 65536 times too small. It is 1.0 where it is not given "
            "(since 0.19.3; measured on 0.19.8).",
            "torch_autocast 使用 float16 且启用 ZeRO：gradient_clipping 作用于尚未除以缩放系数的梯度，更新量约缩小为 "
            "1/65536。未写时默认为 1.0（自 0.19.3 起；0.19.8 上实测）。",
        ),
        Text('Write "gradient_clipping": 0, or bfloat16.', '写 "gradient_clipping": 0，或改用 bfloat16。'),
        _at("gradient_clipping"),
    ),
    _Danger(
        "autocast-without-dtype",
        lambda facts: facts.mode.kind == "autocast" and facts.get("torch_autocast", "dtype") is None,
        Text(
            "torch_autocast without dtype: torch's own default counts, which is float16 on a GPU, and DeepSpeed then "
            "makes no loss scale.",
            "torch_autocast 没有 dtype：按 torch 的默认值，GPU 上为 float16，而 DeepSpeed 此时不做损失缩放。",
        ),
        Text('Add "dtype": "bfloat16".', '加上 "dtype": "bfloat16"。'),
        _at("torch_autocast"),
    ),
    _Danger(
        "autocast-moot",
        lambda facts: facts.autocast and facts.mode.kind == "stored",
        Text(
            "torch_autocast beside the fp16 or bf16 table: the weights are 16-bit, so autocast keeps nothing in "
            "float32 that matters.",
            "torch_autocast 与 fp16 或 bf16 表同时启用：权重已是 16 位，autocast 起不到保护作用。",
        ),
        Text(
            "Disable the table for float32 weights, or disable torch_autocast.",
            "要 float32 权重就关闭该表，否则关闭 torch_autocast。",
        ),
        _at("torch_autocast", "enabled"),
    ),
    _Danger(
        "autocast-ignores-communication",
        lambda facts: (
            facts.mode.kind == "autocast" and facts.stage > 0 and facts.get("communication_data_type") is not None
        ),
        Text(
            "communication_data_type does nothing beside torch_autocast from ZeRO stage 1 on: gradients of Linear and "
            "Conv layers travel in dtype, others in float32 (measured on 0.19.8).",
            "与 torch_autocast 同用时，从 ZeRO stage 1 起 communication_data_type 不起作用：Linear 和 Conv 层的梯度以 "
            "dtype 通信，其余以 float32 通信（0.19.8 上实测）。",
        ),
        Text(
            'For float32 write "lower_precision_safe_modules": [] in torch_autocast.',
            '如需 float32，请在 torch_autocast 中写 "lower_precision_safe_modules": []。',
        ),
        _at("communication_data_type"),
    ),
    _Danger(
        "static-loss-scale",
        lambda facts: facts.mode == Mode("stored", "float16") and bool(facts.get("fp16", "loss_scale", default=0)),
        Text(
            "The loss scale is static: once gradients overflow at it, every step is skipped and nothing is learnt.",
            "损失缩放为固定值：一旦梯度在该系数下溢出，每一步都会被跳过，模型不再学习。",
        ),
        Text('Write "loss_scale": 0, which is a dynamic scale.', '写 "loss_scale": 0，即动态缩放。'),
        _at("fp16", "loss_scale"),
    ),
    _Danger(
        "high-first-scale",
        lambda facts: _dynamic(facts) and facts.get("fp16", "initial_scale_power", default=16) > _USUAL_POWER,
        Text(
            "The first scale is far above what float16 gradients bear: every power of two too many skips one step at "
            "the start.",
            "初始缩放系数远高于 float16 梯度所能承受的范围：开始时每多一个 2 的幂就跳过一步。",
        ),
        Text('Write "initial_scale_power": 16.', '写 "initial_scale_power": 16。'),
        _at("fp16", "initial_scale_power"),
    ),
    _Danger(
        "overflow-unchecked",
        lambda facts: not facts.checks_overflow,
        Text(
            "bf16.check_grad_overflow is false (the default before 0.19.3): an infinite or NaN gradient is written "
            "into the weights without a word.",
            "bf16.check_grad_overflow 为 false（0.19.3 之前的默认值）：无穷或 NaN 梯度会被直接写入权重，没有任何提示。",
        ),
        Text('Write "check_grad_overflow": true.', '写 "check_grad_overflow": true。'),
        lambda facts: (facts.bf16, "check_grad_overflow"),
    ),
    _Danger(
        "sums-in-16-bit",
        lambda facts: (
            facts.mode.kind == "stored"
            and facts.get("gradient_accumulation_steps", default=1) > 1
            and facts.sums_in != "float32"
        ),
        Text(
            "Gradients of many micro-batches are summed in 16 bits, where small ones are lost to large ones "
            "(deepspeedai/DeepSpeed#2768).",
            "多个微批的梯度以 16 位累加，小梯度会被大梯度吞掉（deepspeedai/DeepSpeed#2768）。",
        ),
        Text(
            'Add "data_types": {"grad_accum_dtype": "fp32"}; it needs ZeRO stage 1 or more.',
            '加上 "data_types": {"grad_accum_dtype": "fp32"}；需要 ZeRO stage 1 或以上。',
        ),
        lambda facts: (
            ("data_types", "grad_accum_dtype")
            if facts.settings.has("data_types", "grad_accum_dtype")
            else ("gradient_accumulation_steps",)
        ),
    ),
    _Danger(
        "narrow-communication",
        lambda facts: facts.reduces_in == "float16" and facts.mode.dtype != "float16",
        Text(
            "Gradients are sent in float16 without a loss scale, though the model computes in a format of wider "
            "range: large ones become infinite, small ones zero.",
            "梯度以 float16 通信且没有损失缩放，而模型的计算格式范围更大：大梯度变为无穷，小梯度变为零。",
        ),
        Text('Write "communication_data_type": "bf16" or "fp32".', '写 "communication_data_type": "bf16" 或 "fp32"。'),
        _at("communication_data_type"),
    ),
    _Danger(
        "optimizer-states-in-16-bit",
        lambda facts: facts.pure and facts.get(facts.bf16, "bf16_optimizer_states") is True,
        Text(
            "The optimizer's moments are bfloat16: with a decay of 0.999 the second moment hardly moves, since its "
            "changes are under half an ulp.",
            "优化器动量为 bfloat16：衰减率为 0.999 时二阶动量几乎不变，因为其变化小于半个 ulp。",
        ),
        Text("Delete bf16_optimizer_states.", "删除 bf16_optimizer_states。"),
        lambda facts: (facts.bf16, "bf16_optimizer_states"),
    ),
    _Danger(
        "second-bf16-table",
        lambda facts: facts.settings.get("bf16") is not None and facts.settings.get("bfloat16") is not None,
        Text(
            "bf16 and bfloat16 are the same table: DeepSpeed reads bf16 and ignores the other.",
            "bf16 与 bfloat16 是同一个表：DeepSpeed 读取 bf16，忽略另一个。",
        ),
        Text("Delete bfloat16.", "删除 bfloat16。"),
        _at("bfloat16"),
    ),
    _Danger(
        "filled-in-later",
        _left_to_others,
        Text(
            'fp16.enabled or bf16.enabled is "auto": the arguments of Trainer or Accelerate decide. This plan takes '
            "it as false.",
            'fp16.enabled 或 bf16.enabled 为 "auto"：由 Trainer 或 Accelerate 的参数决定。此计划按 false 处理。',
        ),
        Text("Read the arguments together with this file.", "请与相应参数一起读取该文件。"),
        lambda facts: (
            ("fp16", "enabled") if facts.settings.get("fp16", "enabled") == "auto" else (facts.bf16, "enabled")
        ),
    ),
)
