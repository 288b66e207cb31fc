# SPDX-License-Identifier: Apache-2.0
"""The part of the HTML page that compares the plan with float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from floatwise.language import Text
from floatwise.planner.decision import Decision, Measured
from floatwise.report import charts, numbers, proof

__all__ = ["proof_content"]


@dataclass(frozen=True)
class _Tile:
    name: str
    value: str
    detail: str
    mood: str = ""


_SPEED = Text("Speed", "速度")
_MEMORY = Text("Peak memory", "峰值内存")
_LOSS = Text("Loss", "损失")
_A_STEP = Text("{float32} → {planned} a step", "每步 {float32} → {planned}")
_SAME = Text("same", "一致")
_DIFFERS = Text("differs", "不一致")
_LOSS_DETAIL = Text("float32 {float32}, plan {planned}", "float32 {float32}，该计划 {planned}")


def proof_content(decision: Decision) -> dict[str, Any]:
    """Returns the tiles, the comparison with float32 and its charts; nothing for float32 itself."""
    content: dict[str, Any] = dict.fromkeys(
        ("planned_name", "proof", "tiles", "loss_chart", "has_band", "savings", "saving_note", "bars"), ""
    )
    measured, ran_here = decision.measured, decision.here and decision.measured is not None
    if decision.plan.is_float32 and measured is None:
        return content
    name = content["planned_name"] = proof.planned_name(decision)
    content["proof"] = [] if ran_here else [proof.not_run_sentences(decision)]
    if measured is None:
        return content
    content["proof"].append(proof.parity_sentences(measured.loss_parity, name))
    if not decision.plan.is_float32:
        content["tiles"] = _tiles(measured, ran_here)
    if any(measured.losses.values()):
        content["loss_chart"] = charts.loss_chart(measured.losses, measured.loss_parity)
        content["has_band"] = measured.loss_parity is not None
    if ran_here:
        content["savings"] = proof.saving_rows(measured)
        content["saving_note"] = proof.saving_note(measured)
        content["bars"] = _bars(measured, name)
    return content


def _tiles(measured: Measured, ran_here: bool) -> list[_Tile]:
    tiles = []
    if ran_here:
        low, high = measured.speed_spread
        mood = "good" if low > 1 else "bad" if high < 1 else ""
        planned, float32 = map(numbers.seconds, measured.step_seconds)
        step = _A_STEP.format(planned=planned, float32=float32)
        tiles.append(_Tile(str(_SPEED), numbers.ratio(measured.speed_ratio), step, mood))
    if ran_here and measured.memory_ratio is not None:
        sizes = f"{numbers.bytes_text(measured.float32_bytes)} → {numbers.bytes_text(measured.planned_bytes)}"
        ratio = numbers.ratio(measured.memory_ratio)
        tiles.append(_Tile(str(_MEMORY), ratio, sizes, "good" if measured.memory_ratio < 1 else ""))
    parity = measured.loss_parity
    if parity is not None:
        word, mood = (_SAME, "good") if parity.within_spread else (_DIFFERS, "bad")
        float32 = numbers.quantity(parity.float32[0] if parity.float32 else None)
        detail = _LOSS_DETAIL.format(float32=float32, planned=numbers.quantity(parity.planned))
        tiles.append(_Tile(str(_LOSS), str(word), detail, mood))
    return tiles


_STEP_TIME = Text("Step time, {unit}", "单步耗时，{unit}")
_MEMORY_TITLE = Text("Peak tensor memory, {unit}", "张量内存峰值，{unit}")


def _bars(measured: Measured, name: str) -> list[dict[str, Any]]:
    planned, float32 = measured.step_seconds
    times = _two_bars("step-time", _STEP_TIME, (float32, planned), name, numbers.seconds, numbers.seconds_unit)
    if measured.float32_bytes is None or measured.planned_bytes is None:
        return [times]
    sizes = measured.float32_bytes, measured.planned_bytes
    return [times, _two_bars("memory", _MEMORY_TITLE, sizes, name, numbers.bytes_text, numbers.bytes_unit)]


def _two_bars(
    name: str,
    title: Text,
    values: tuple[float, float],
    planned: str,
    text: Callable[[Any], str],
    unit_of: Callable[[float], tuple[float, str]],
) -> dict[str, Any]:
    size, unit = unit_of(max(values))
    bars = [
        charts.Bar(bar, value, text(value), class_)
        for bar, value, class_ in zip(("float32", planned), values, ("float32", "planned"), strict=True)
    ]
    heading = title.format(unit=unit)
    return {"title": heading, "chart": charts.bars_chart(name, heading, unit, size, bars)}
