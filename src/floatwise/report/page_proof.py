# SPDX-License-Identifier: Apache-2.0
"""The part of the HTML page that compares the plan with float32: tiles, the measured rows, and the rehearsals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.language import Text
from floatwise.planner.decision import Decision, Measured, Rehearsal
from floatwise.report import numbers, proof
from floatwise.report.chosen import chosen_verdict
from floatwise.report.products import product_note, product_rows
from floatwise.report.rehearsals import rehearsal_mood, rehearsal_note, rehearsal_row, rehearsal_word

__all__ = ["proof_content", "rehearsal_content", "tiles"]


@dataclass(frozen=True)
class _Tile:
    kind: str
    name: str
    value: str
    detail: str
    mood: str = ""


_SPEED = Text("Speed, measured", "速度（实测）")
_MEMORY = Text("Peak memory, measured", "峰值内存（实测）")
_LOSS = Text("Loss, measured", "损失（实测）")
_A_STEP = Text("{float32} → {planned} a step", "每步 {float32} → {planned}")
_SAME = Text("same", "一致")
_DIFFERS = Text("differs", "不一致")
_LOSS_DETAIL = Text("float32 {float32}, plan {planned}", "float32 {float32}，该计划 {planned}")
_REHEARSAL = Text("Rehearsal", "预演")
_SPEED_PREDICTED = Text("Speed, predicted", "速度（预测）")
_MEMORY_PREDICTED = Text("Peak memory, predicted", "峰值内存（预测）")
_RANGE = Text("{low}–{high}× float32's", "float32 的 {low}–{high} 倍")
_SIZES = Text("{float32} → {planned}", "{float32} → {planned}")


def tiles(decision: Decision) -> list[_Tile]:
    """Returns the decision in a few large words: what was measured, else what was rehearsed and predicted."""
    if decision.plan.is_float32:
        return []
    found = {tile.kind: tile for tile in (*_rehearsed_tiles(decision), *_measured_tiles(decision))}
    return [found[kind] for kind in ("speed", "memory", "loss", "rehearsal") if kind in found]


def _measured_tiles(decision: Decision) -> list[_Tile]:
    measured = decision.measured
    found: list[_Tile] = []
    if measured is None:
        return found
    if decision.here:
        low, high = measured.speed_spread
        mood = "good" if low > 1 else "bad" if high < 1 else ""
        planned, float32 = map(numbers.seconds, measured.step_seconds)
        step = _A_STEP.format(planned=planned, float32=float32)
        found.append(_Tile("speed", str(_SPEED), numbers.ratio(measured.speed_ratio), step, mood))
    if decision.here and measured.memory_ratio is not None:
        planned, float32 = numbers.bytes_text(measured.planned_bytes), numbers.bytes_text(measured.float32_bytes)
        ratio, sizes = numbers.ratio(measured.memory_ratio), _SIZES.format(float32=float32, planned=planned)
        found.append(_Tile("memory", str(_MEMORY), ratio, sizes, "good" if measured.memory_ratio < 1 else ""))
    parity = measured.loss_parity
    if parity is not None:
        word, mood = (_SAME, "good") if parity.within_spread else (_DIFFERS, "bad")
        float32 = numbers.quantity(parity.float32[0] if parity.float32 else None)
        detail = _LOSS_DETAIL.format(float32=float32, planned=numbers.quantity(parity.planned))
        found.append(_Tile("loss", str(_LOSS), str(word), detail, mood))
    return found


def _rehearsed_tiles(decision: Decision) -> list[_Tile]:
    verdict = chosen_verdict(decision)
    if verdict is None:
        return []
    found = []
    predicted = verdict.predicted
    if predicted is not None and predicted.speed is not None:
        speed = predicted.speed
        span = _RANGE.format(low=numbers.factor(speed.low), high=numbers.factor(speed.high))
        mood = "good" if speed.low > 1 else "bad" if speed.high < 1 else ""
        found.append(_Tile("speed", str(_SPEED_PREDICTED), numbers.ratio(speed.ratio), span, mood))
    if predicted is not None:
        planned, float32 = map(numbers.bytes_text, (predicted.memory.peak_bytes, predicted.float32_memory.peak_bytes))
        sizes = _SIZES.format(float32=float32, planned=planned)
        mood = "bad" if predicted.fits is False else "good" if predicted.memory_ratio < 1 else ""
        found.append(_Tile("memory", str(_MEMORY_PREDICTED), numbers.ratio(predicted.memory_ratio), sizes, mood))
    if verdict.rehearsal is not None:
        float32_loss, loss = map(numbers.quantity, verdict.rehearsal.last.final_losses)
        detail = _LOSS_DETAIL.format(float32=float32_loss, planned=loss)
        found.append(_Tile("rehearsal", str(_REHEARSAL), rehearsal_word(verdict), detail, rehearsal_mood(verdict)))
    return found


_PROOF_KEYS = ("planned_name", "proof", "savings", "saving_note", "products", "product_note")


def proof_content(decision: Decision) -> dict[str, Any]:
    """Returns the comparison with float32 as it was measured; nothing for float32 itself."""
    content: dict[str, Any] = dict.fromkeys(_PROOF_KEYS, "")
    measured = decision.measured
    if decision.plan.is_float32 and measured is None:
        return content
    ran_here = decision.here and measured is not None
    name = content["planned_name"] = proof.planned_name(decision)
    content["proof"] = [] if ran_here else [proof.not_run_sentences(decision)]
    if measured is not None:
        content["proof"].append(proof.parity_sentences(measured.loss_parity, name))
        content.update(_savings(measured) if ran_here else {})
    return content


def _savings(measured: Measured) -> dict[str, Any]:
    content = {"savings": proof.saving_rows(measured), "saving_note": proof.saving_note(measured)}
    rows = product_rows(measured)
    return {**content, "products": rows, "product_note": product_note(measured) if rows else ""}


def rehearsal_content(found: Mapping[str, Rehearsal]) -> dict[str, Any]:
    """Returns every rehearsal as a row."""
    if not found:
        return {"rehearsals": [], "rehearsal_note": ""}
    rows = [rehearsal_row(recipe, rehearsal) for recipe, rehearsal in found.items()]
    return {"rehearsals": rows, "rehearsal_note": rehearsal_note(list(found.values()))}
