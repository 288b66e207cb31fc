# SPDX-License-Identifier: Apache-2.0
"""What was measured against float32, and what was not, in sentences and rows."""

from __future__ import annotations

from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Decision, LossParity, Measured
from floatwise.report import numbers
from floatwise.report.plain import paragraph, plain

__all__ = [
    "SavingRow",
    "not_run_sentences",
    "parity_sentences",
    "parity_word",
    "planned_name",
    "saving_note",
    "saving_rows",
]

_STEP = Text("step time", "单步耗时")
_PEAK = Text("peak memory", "峰值内存")
_SPEED_CELL = Text("{ratio} the speed ({low}–{high}×)", "速度 {ratio}（{low}–{high}×）")
_MEMORY_CELL = Text("{ratio} the memory", "内存 {ratio}")
_SAVING_NOTE = Text(
    "{steps} steps of each, run in turn on {device}; medians. In brackets: the middle half of neighbouring pairs.",
    "在 {device} 上交替运行，各 {steps} 步，取中位数。括号内为相邻步骤比值的四分位区间。",
)


@dataclass(frozen=True)
class SavingRow:
    """One line of the comparison with float32, as text."""

    label: str
    float32: str
    planned: str
    ratio: str


def saving_rows(measured: Measured) -> list[SavingRow]:
    """Returns step time and peak memory under float32 and under the plan."""
    planned, float32 = measured.step_seconds
    low, high = (numbers.factor(edge) for edge in measured.speed_spread)
    speed = _SPEED_CELL.format(ratio=numbers.ratio(measured.speed_ratio), low=low, high=high)
    rows = [SavingRow(str(_STEP), numbers.seconds(float32), numbers.seconds(planned), speed)]
    if measured.memory_ratio is not None:
        memory = _MEMORY_CELL.format(ratio=numbers.ratio(measured.memory_ratio))
        sizes = numbers.bytes_text(measured.float32_bytes), numbers.bytes_text(measured.planned_bytes)
        rows.append(SavingRow(str(_PEAK), *sizes, memory))
    return rows


def saving_note(measured: Measured) -> str:
    """Returns how the comparison was made."""
    return _SAVING_NOTE.format(steps=measured.steps, device=plain(measured.device))


_TRIED = Text("{recipe} (tried)", "{recipe}（试用）")


def planned_name(decision: Decision) -> str:
    """Returns what was measured against float32: the recipe, or another where the decision is float32."""
    if decision.plan.is_float32 and decision.measured is not None:
        return _TRIED.format(recipe=plain(decision.measured.recipe))
    return plain(decision.recipe)


_NOTHING_RUN = Text(
    "Nothing was run on {target}: its speed and memory are not measured.",
    "没有在 {target} 上运行任何步骤：该设备上的速度与内存未经实测。",
)
_NOTHING_MEASURED = Text(
    "The plan was not run on this machine: its speed and memory are not measured.",
    "该计划没有在本机上运行：速度与内存未经实测。",
)
_RUN_ELSEWHERE = Text(
    "The plan was run on {device} instead, so the loss is measured.",
    "改在 {device} 上运行了该计划，因此损失经过实测。",
)


def not_run_sentences(decision: Decision) -> str:
    """Returns what was not run on the target, and what was run in its place."""
    if decision.here:
        return str(_NOTHING_MEASURED)
    said = [_NOTHING_RUN.format(target=plain(decision.target_name))]
    if decision.measured is not None and decision.measured.loss_parity is not None:
        said.append(_RUN_ELSEWHERE.format(device=plain(decision.measured.device)))
    return paragraph(said)


_PARITY_NUMBERS = Text(
    "Loss of the last steps: {planned} with {name}; {float32} in float32 ({seeds}).",
    "最后若干步的平均损失：{name} 为 {planned}；float32 为 {float32}（{seeds}）。",
)
_ONE_SEED = Text("one seed", "一个随机种子")
_SEEDS = Text("{n} seeds", "{n} 个随机种子")
_INSIDE = Text(
    "That is inside float32's own spread, {low} to {high}.",
    "这处于 float32 自身的波动范围 {low} 至 {high} 之内。",
)
_OUTSIDE = Text(
    "That is outside float32's own spread, {low} to {high}: find out why before you train with it.",
    "这超出 float32 自身的波动范围 {low} 至 {high}：请先查明原因，再用它训练。",
)
_NO_LOSS = Text(
    "The script's loss was not seen, so equal loss is not proved here.",
    "没有观察到脚本的损失值，因此这里未能验证损失是否一致。",
)


def parity_sentences(parity: LossParity | None, name: str) -> str:
    """Returns the proof that what is called `name` trains as float32 does, or what is missing for one."""
    if parity is None:
        return str(_NO_LOSS)
    seeds = len(parity.float32)
    verdict = _INSIDE if parity.within_spread else _OUTSIDE
    low, high = map(numbers.quantity, parity.spread)
    stated = _PARITY_NUMBERS.format(
        name=name,
        planned=numbers.quantity(parity.planned),
        float32=", ".join(map(numbers.quantity, parity.float32)),
        seeds=str(_ONE_SEED) if seeds == 1 else _SEEDS.format(n=seeds),
    )
    return paragraph((stated, verdict.format(low=low, high=high)))


_SAME_LOSS = Text("same loss", "损失一致")
_OTHER_LOSS = Text("loss outside float32's own spread", "损失超出 float32 自身的波动范围")


def parity_word(parity: LossParity) -> str:
    """Returns the verdict on the loss in two or three words."""
    return str(_SAME_LOSS if parity.within_spread else _OTHER_LOSS)
