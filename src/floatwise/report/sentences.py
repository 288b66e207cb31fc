# SPDX-License-Identifier: Apache-2.0
"""The sentences of a decision that the terminal and the HTML page share."""

from __future__ import annotations

from floatwise.language import Text
from floatwise.planner.decision import Decision, LossScaleChoice, Measured, Verdict
from floatwise.report import numbers
from floatwise.report.chosen import chosen_verdict
from floatwise.report.folding import fold_paths
from floatwise.report.islands import module_name
from floatwise.report.plain import plain
from floatwise.report.proof import parity_word

__all__ = [
    "headline",
    "loss_scale_sentence",
    "outcome",
    "place",
    "role_name",
    "status_word",
    "subtitle",
    "target",
    "verdict_lines",
    "why_lines",
]

_HERE = Text("{recipe} on this machine: {outcome}", "{recipe}（本机）：{outcome}")
_THERE = Text("{recipe} for {target}: {outcome}", "{recipe}（{target}）：{outcome}")
_PLACE_HERE = Text("Precision for this machine, {target}", "本机（{target}）的训练精度")
_PLACE_THERE = Text("Precision for {target}", "{target} 的训练精度")
_COMMA = Text(", ", "，")

_STAY = Text("stay in float32", "保持 float32")
_NOT_MEASURED = Text("not measured", "未实测")
_REHEARSED = Text("rehearsal passes", "预演通过")
_PREDICTED = Text("predicted: {gains}", "预测：{gains}")
_PREDICTED_SPEED = Text("{factor}× the speed", "速度为 {factor} 倍")
_SEMICOLON = Text("; ", "；")
_SAME_LOSS_RUN = Text("same loss when run here", "在本机运行损失一致")
_NOT_RUN_THERE = Text("decided from the recording, not run there", "根据录制数据判定，未在该设备上运行")
_SAME_LOSS_HERE = Text(
    "same loss when run here, speed there not measured", "在本机运行损失一致，目标设备上的速度未实测"
)
_OTHER_LOSS_HERE = Text("loss differs from float32's when run here", "在本机运行时损失与 float32 不一致")

_FASTER = Text("{factor}× faster", "速度为 float32 的 {factor} 倍")
_SLOWER = Text("{factor}× slower", "比 float32 慢，耗时为 {factor} 倍")
_SAME_SPEED = Text("same speed", "速度相同")
_MEMORY = Text("{factor}× the memory", "内存为 {factor} 倍")
_SAME_MEMORY = Text("same memory", "内存相同")

_SUBTITLE = Text(
    "{script} · {target} · {parameters} parameters · {steps} steps recorded",
    "{script} · {target} · {parameters} 个参数 · 已录制 {steps} 步",
)

_STATUS = {
    "chosen": Text("chosen", "选用"),
    "accepted": Text("works too", "也可用"),
    "refused": Text("refused", "不可用"),
    "not_worth_it": Text("not worth it", "不划算"),
}
_ROLES = {
    "weight": Text("weights", "权重"),
    "input": Text("inputs", "输入"),
    "output": Text("outputs", "输出"),
    "grad_output": Text("output gradients", "输出梯度"),
    "weight_grad": Text("weight gradients", "权重梯度"),
    "update": Text("weight updates", "权重更新量"),
}


def headline(decision: Decision) -> str:
    """Returns the decision in one line; the recipe comes first."""
    frame = _HERE if decision.here else _THERE
    return frame.format(recipe=plain(decision.recipe), target=plain(decision.target_name), outcome=outcome(decision))


def place(decision: Decision) -> str:
    """Returns which device the decision is for."""
    frame = _PLACE_HERE if decision.here else _PLACE_THERE
    return frame.format(target=plain(decision.target_name))


_TARGET_HERE = Text("{target} (this machine)", "{target}（本机）")


def target(decision: Decision) -> str:
    """Returns the name of the device, and whether it is this machine's."""
    name = plain(decision.target_name)
    return _TARGET_HERE.format(target=name) if decision.here else name


def outcome(decision: Decision) -> str:
    """Returns what the recipe brings, without its name."""
    if decision.plan.is_float32:
        return str(_STAY)
    measured = decision.measured
    if decision.here:
        return str(_COMMA).join(_gains(measured) if measured else ()) or _expected(decision) or str(_NOT_MEASURED)
    if measured is None or measured.loss_parity is None:
        return _expected(decision) or str(_NOT_RUN_THERE)
    if not measured.loss_parity.within_spread:
        return str(_OTHER_LOSS_HERE)
    predicted = _predicted(decision)
    return str(_SEMICOLON).join((str(_SAME_LOSS_RUN), predicted)) if predicted else str(_SAME_LOSS_HERE)


def _expected(decision: Decision) -> str:
    """Returns what a rehearsal and predictions promise; empty without them."""
    verdict = chosen_verdict(decision)
    rehearsed = [str(_REHEARSED)] if verdict is not None and verdict.rehearsal is not None else []
    predicted = _predicted(decision)
    return str(_SEMICOLON).join([*rehearsed, *([predicted] if predicted else [])])


def _predicted(decision: Decision) -> str:
    verdict = chosen_verdict(decision)
    predicted = verdict.predicted if verdict is not None else None
    if predicted is None:
        return ""
    speed = [_PREDICTED_SPEED.format(factor=numbers.factor(predicted.speed.ratio))] if predicted.speed else []
    gains = [*speed, _MEMORY.format(factor=numbers.factor(predicted.memory_ratio))]
    return _PREDICTED.format(gains=str(_COMMA).join(gains))


#: Speeds nearer to float32's than this are called the same: a quiet machine's noise is 2 to 3 %.
_SAME_WITHIN = 0.04


def _gains(measured: Measured) -> list[str]:
    low, high = measured.speed_spread
    gains: list[str] = []
    if low <= 1 <= high and abs(measured.speed_ratio - 1) < _SAME_WITHIN:
        gains.append(str(_SAME_SPEED))
    elif measured.speed_ratio > 1:
        gains.append(_FASTER.format(factor=numbers.factor(measured.speed_ratio)))
    elif measured.speed_ratio > 0:
        gains.append(_SLOWER.format(factor=numbers.factor(1 / measured.speed_ratio)))
    if measured.memory_ratio is not None:
        factor = numbers.factor(measured.memory_ratio)
        gains.append(str(_SAME_MEMORY) if factor == "1.00" else _MEMORY.format(factor=factor))
    if measured.loss_parity is not None:
        gains.append(parity_word(measured.loss_parity))
    return gains


def subtitle(decision: Decision) -> str:
    """Returns what was looked at: script, device, size, steps."""
    return _SUBTITLE.format(
        script=plain(decision.script),
        target=plain(decision.target_name),
        parameters=numbers.count(decision.parameters),
        steps=decision.steps,
    )


def status_word(status: str) -> str:
    """Returns a verdict's status in the current language."""
    return str(_STATUS.get(status, status))


def role_name(role: str) -> str:
    """Returns what a role's values are called in the current language."""
    return str(_ROLES.get(role, plain(role)))


_LOSS_SCALE = Text(
    "Scales from {low} to {high} lose nothing. Training starts at {initial}; "
    "the gradients of {largest} set the upper end.",
    "缩放系数取 {low} 至 {high} 时，梯度既不上溢也不下溢。训练从 {initial} 开始；上限由 {largest} 的梯度决定。",
)


def loss_scale_sentence(choice: LossScaleChoice) -> str:
    """Returns the window of safe loss scales in words."""
    low, high = choice.window_log2
    return _LOSS_SCALE.format(
        low=f"2^{low}",
        high=f"2^{high}",
        initial=numbers.power_of_two(choice.initial),
        largest=plain(choice.largest),
    )


_KEPT = Text("modules in float32: {modules}", "使用 float32 的模块：{modules}")


def why_lines(decision: Decision) -> list[str]:
    """Returns why the decision is as it is; what is said of the islands is said where they are listed."""
    told = [island.reason for island in decision.islands]
    return [plain(reason) for reason in decision.reasons if reason not in told]


def verdict_lines(verdict: Verdict) -> list[str]:
    """Returns what is said about a recipe: of its islands one reason of each kind, and their folded paths."""
    firsts = {island.reason.code: island.reason for island in reversed(verdict.islands)}
    others = [island.reason for island in verdict.islands if island.reason != firsts[island.reason.code]]
    lines = list(dict.fromkeys(plain(reason) for reason in verdict.reasons if reason not in others))
    if verdict.islands:
        patterns = fold_paths(module_name(island.module) for island in verdict.islands)
        lines.append(_KEPT.format(modules=", ".join(plain(entry.pattern) for entry in patterns)))
    return lines
