# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal has shown: each a code, its data, and one sentence in two languages. No framework is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatwise.language import Text
from floatwise.rehearse.float8_texts import FLOAT8_ADVICE, FLOAT8_REMARKS
from floatwise.rehearse.nonfinite import NonFinite

__all__ = ["EVIDENCE", "Evidence"]


@dataclass(frozen=True)
class Evidence:
    """Something shown, with the values that fill its sentence; `str` gives it in the current language."""

    code: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            str(self)
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # read from a file of unknown origin
            raise ValueError(f"got evidence {self.code!r} with data that do not fill its sentence") from error

    def __str__(self) -> str:
        data = dict(self.data)
        if "phase" in data:
            data["phase"] = _PHASES[data["phase"]]
        return EVIDENCE[self.code].format(**data)

    @classmethod
    def of_nonfinite(cls, found: NonFinite, harmless: bool = False) -> Evidence:
        """Returns the sentence on an operator that made infinities or NaN."""
        data = {
            "operator": found.operator,
            "module": found.module or "(root)",
            "phase": found.phase,
            "step": found.step,
            "result": found.result.replace("nan", "NaN"),
            "format": found.format,
            "amax": f"{found.input_amax:.4g}",
        }
        return cls("nonfinite_harmless" if harmless else "first_nonfinite", data)

    def to_json(self) -> dict[str, Any]:
        """Returns code and data as JSON holds them, and the sentence in the current language."""
        return {"code": self.code, "data": dict(self.data), "text": str(self)}


_PHASES = {
    "forward": Text("forward pass", "前向传播"),
    "backward": Text("backward pass", "反向传播"),
    "update": Text("update", "参数更新"),
}

_PROBLEMS = {
    "ended_early": Text(
        "The script ended itself after {steps} steps, where float32 goes on to {float32_steps}.",
        "脚本在 {steps} 步后自行结束，而 float32 会继续到 {float32_steps} 步。",
    ),
    "loss_not_finite": Text(
        "The loss is {loss} at step {step}, where float32's is finite.",
        "第 {step} 步的损失为 {loss}，而 float32 下是有限值。",
    ),
    "gradients_not_finite": Text(
        "The first batch has gradients that are not finite at any loss scale down to {scale}.",
        "损失缩放降到 {scale} 时，第一个批次的梯度仍不是有限值。",
    ),
    "gradients_wrong": Text(
        "{count} of {total} gradients of the first batch are more noise than rounding may make of them; worst: "
        "{parameter}, {sqnr_db} dB of signal over noise where at least {required_db} are expected.",
        "第一个批次的 {total} 个梯度中有 {count} 个的误差超出舍入误差的合理范围；最严重：{parameter}，"
        "信噪比为 {sqnr_db} dB，至少应为 {required_db} dB。",
    ),
    "gradients_vanish": Text(
        "{count} of {total} gradients of the first batch vanish in part; worst: {parameter}, {share} zeros, "
        "{float32_share} in float32.",
        "第一个批次的 {total} 个梯度中有 {count} 个部分变为零；最严重：{parameter}，零占 {share}，"
        "float32 下为 {float32_share}。",
    ),
    "loss_outside_seeds": Text(
        "After {steps} steps the loss is {planned}, float32's {float32}: further apart than float32 runs with "
        "different seeds ({tolerance}).",
        "{steps} 步后损失为 {planned}，float32 为 {float32}：差距大于 float32 更换随机种子时的波动（{tolerance}）。",
    ),
    "loss_outside_permuted_reductions": Text(
        "After {steps} steps the loss is {planned}, float32's {float32}: further apart than the format's rounding "
        "explains ({tolerance}), judged by float32 runs that add up in another order.",
        "{steps} 步后损失为 {planned}，float32 为 {float32}：差距大于该格式的舍入误差所能解释的范围"
        "（{tolerance}，依据改变求和次序的 float32 运行估计）。",
    ),
    "updates_stall": Text(
        "{count} of {total} parameters lose most of their updates to rounding; worst: {parameter}, {share}, "
        "{float32_share} in float32.",
        "{total} 个参数中有 {count} 个的大部分更新因舍入而丢失；最严重：{parameter}，{share}，"
        "float32 下为 {float32_share}。",
    ),
    "most_steps_skipped": Text(
        "{skipped} of {steps} steps were skipped because gradients overflowed.",
        "{steps} 步中有 {skipped} 步因梯度上溢而被跳过。",
    ),
    "steps_skipped": Text(
        "{skipped} of {steps} steps were skipped because gradients overflowed; the loss scale is down to {scale}.",
        "{steps} 步中有 {skipped} 步因梯度上溢而被跳过；损失缩放已降到 {scale}。",
    ),
}

_REMARKS = {
    "baseline_not_finite": Text(
        "Float32 itself does not train with finite numbers (loss {loss}): repair that first, no precision will.",
        "float32 本身的训练就出现非有限值（损失 {loss}）：请先修复它，换任何精度都无济于事。",
    ),
    "first_nonfinite": Text(
        "The first trouble is {operator} in {module} ({phase} of step {step}): {result} in {format}, from inputs of "
        "at most {amax}.",
        "最早出问题的是 {module} 中的 {operator}（第 {step} 步的{phase}）：{format} 结果为 {result}，"
        "其输入最大为 {amax}。",
    ),
    "nonfinite_harmless": Text(
        "{operator} in {module} ({phase} of step {step}) makes {result} in {format}, from inputs of at most {amax}; "
        "neither loss nor gradients suffer.",
        "{module} 中的 {operator}（第 {step} 步的{phase}）在 {format} 下得到 {result}，其输入最大为 {amax}；"
        "损失和梯度均未受影响。",
    ),
    "no_gradients": Text(
        "The script computes without modules, so its parameters are not known: only losses were compared.",
        "脚本不使用模块计算，无法得知哪些是参数：只比较了损失。",
    ),
    "scale_settles": Text(
        "The loss scale {initial} is too large for the first batch: {skipped} steps are skipped until it is {scale}; "
        "begin there.",
        "初始损失缩放 {initial} 对第一个批次过大：要跳过 {skipped} 步才降到 {scale}；请直接从该值开始。",
    ),
    "some_steps_skipped": Text(
        "{skipped} of {steps} steps were skipped because gradients overflowed.",
        "{steps} 步中有 {skipped} 步因梯度上溢而被跳过。",
    ),
    "loses_precision": Text(
        "What enters {module} has {input_db} dB of signal over noise, what leaves it {output_db}.",
        "进入 {module} 的数据信噪比为 {input_db} dB，离开时为 {output_db} dB。",
    ),
    "holds_wrong_gradient": Text(
        "The gradient of {parameter} has {sqnr_db} dB of signal over noise, {required_db} are expected.",
        "{parameter} 的梯度信噪比为 {sqnr_db} dB，至少应为 {required_db} dB。",
    ),
    "largest_values": Text("{module} has the largest values: up to {amax}.", "{module} 的数值最大，达到 {amax}。"),
    "island_costs": Text(
        "{module} in float32: {share} of the step's matrix FLOPs.",
        "{module} 保持 float32：占每步矩阵运算量的 {share}。",
    ),
    "islands_too_large": Text(
        "{share} of the matrix FLOPs would have to stay in float32.",
        "有 {share} 的矩阵运算量必须留在 float32。",
    ),
    "no_islands_help": Text(
        "Keeping modules in float32 does not make the rehearsal pass.",
        "把模块保留为 float32 也不能使预演通过。",
    ),
}

_ADVICE = {
    "scale_before_product": Text(
        "In {module}, multiply an operand of {operator} by {factor} before the product instead of the result after "
        "it: the largest result is then {after} instead of {before}.",
        "在 {module} 中，把 {operator} 之后乘以 {factor} 改为乘法之前对一个操作数乘以 {factor}："
        "结果最大值由 {before} 变为 {after}。",
    ),
    "scale_product": Text(
        "In {module}, divide an operand of {operator} by {divisor} and multiply by it again in float32: the largest "
        "result, {before}, is then {after}.",
        "在 {module} 中，先将 {operator} 的一个操作数除以 {divisor}，再在 float32 中乘回："
        "结果最大值由 {before} 变为 {after}。",
    ),
    "sum_in_float32": Text(
        "In {module}, add up in float32: give {operator} dtype=torch.float32, or call .float() before it.",
        "在 {module} 中用 float32 求和：为 {operator} 指定 dtype=torch.float32，或先调用 .float()。",
    ),
    "compute_in_float32": Text(
        "In {module}, call .float() on the inputs of {operator}: its result reaches {before}, past {format}'s {limit}.",
        "在 {module} 中，对 {operator} 的输入先调用 .float()：其结果达到 {before}，超过 {format} 的上限 {limit}。",
    ),
    "raise_loss_scale": Text(
        "Raise the loss scale, {scale} now: gradients vanish in float16 and none overflows.",
        "请增大损失缩放（目前为 {scale}）：float16 梯度下溢为零，但没有上溢。",
    ),
    "not_from_rounded": Text(
        "In {module}, compute in float32 what is rounded to {format} now, positions and angles above all, and round "
        "the result.",
        "在 {module} 中，把目前舍入为 {format} 的中间量（尤其是位置和角度）改用 float32 计算，最后再舍入结果。",
    ),
}

EVIDENCE: dict[str, Text] = {**_PROBLEMS, **_REMARKS, **FLOAT8_REMARKS, **_ADVICE, **FLOAT8_ADVICE}
