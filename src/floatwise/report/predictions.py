# SPDX-License-Identifier: Apache-2.0
"""Predicted speed and memory in words and rows; every number says whether it is predicted or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Decision, Predicted, Verdict
from floatwise.report import numbers
from floatwise.report.memory_bars import memory_bars, memory_note
from floatwise.report.proof import SavingRow
from floatwise.report.speed_rows import measured_here, predicted_speed, speed_note

__all__ = ["Quoted", "fits_word", "prediction_notes", "prediction_rows", "quoted_memory", "quoted_speed"]

_PREDICTED = Text("predicted", "预测")
_MEASURED = Text("measured", "实测")
_RANGE = Text("{low}–{high}×", "{low}–{high}×")
_FLOAT32 = Text("float32 {size}", "float32 {size}")
_QUOTED = Text("{value} ({beside}), {source}", "{value}（{beside}），{source}")
_FITS = Text("fits", "可容纳")
_TOO_LARGE = Text("does not fit", "超出容量")


@dataclass(frozen=True)
class Quoted:
    """A number that says where it is from.

    Attributes:
      value: The number with its unit.
      beside: Its range, or float32's.
      source: `predicted` or `measured`, in the current language.
    """

    value: str
    beside: str
    source: str

    def __str__(self) -> str:
        return _QUOTED.format(value=self.value, beside=self.beside, source=self.source)


def quoted_speed(decision: Decision, verdict: Verdict) -> Quoted | None:
    """Returns the speed against float32, measured where it was, else predicted; None where it is neither."""
    measured, speed = measured_here(decision, verdict), predicted_speed(verdict)
    if measured is not None:
        return _speed(measured.speed_ratio, measured.speed_spread, _MEASURED)
    return _speed(speed.ratio, (speed.low, speed.high), _PREDICTED) if speed is not None else None


def _speed(ratio: float, ends: tuple[float, float], source: Text) -> Quoted:
    low, high = map(numbers.factor, ends)
    return Quoted(numbers.ratio(ratio), _RANGE.format(low=low, high=high), str(source))


def quoted_memory(decision: Decision, verdict: Verdict) -> Quoted | None:
    """Returns the peak of tensor memory and float32's, measured where they were, else predicted."""
    measured, predicted = measured_here(decision, verdict), verdict.predicted
    if measured is not None and measured.planned_bytes is not None:
        return _memory(measured.planned_bytes, measured.float32_bytes, _MEASURED)
    if predicted is None:
        return None
    return _memory(predicted.memory.peak_bytes, predicted.float32_memory.peak_bytes, _PREDICTED)


def _memory(planned: int, float32: int | None, source: Text) -> Quoted:
    beside = _FLOAT32.format(size=numbers.bytes_text(float32))
    return Quoted(numbers.bytes_text(planned), beside, str(source))


def fits_word(verdict: Verdict) -> str:
    """Returns whether the predicted peak fits into the device's memory; a dash where that is not known."""
    fits = verdict.predicted.fits if verdict.predicted is not None else None
    return numbers.MISSING if fits is None else str(_FITS if fits else _TOO_LARGE)


_STEP = Text("step time", "单步耗时")
_PEAK = Text("peak memory", "峰值内存")
_SPEED_CELL = Text("{ratio} the speed ({low}–{high}×)", "速度 {ratio}（{low}–{high}×）")
_MEMORY_CELL = Text("{ratio} the memory", "内存 {ratio}")
_AND = Text("; ", "；")


def prediction_rows(predicted: Predicted) -> list[SavingRow]:
    """Returns predicted step time and peak memory under float32 and under the plan."""
    rows = []
    if predicted.speed is not None:
        speed = predicted.speed
        low, high = numbers.factor(speed.low), numbers.factor(speed.high)
        words = _SPEED_CELL.format(ratio=numbers.ratio(speed.ratio), low=low, high=high)
        times = numbers.seconds(speed.float32.seconds), numbers.seconds(speed.planned.seconds)
        rows.append(SavingRow(str(_STEP), *times, words))
    memory = _MEMORY_CELL.format(ratio=numbers.ratio(predicted.memory_ratio))
    if predicted.fits is not None:
        memory = str(_AND).join((memory, str(_FITS if predicted.fits else _TOO_LARGE)))
    sizes = predicted.float32_memory.peak_bytes, predicted.memory.peak_bytes
    rows.append(SavingRow(str(_PEAK), numbers.bytes_text(sizes[0]), numbers.bytes_text(sizes[1]), memory))
    return rows


def prediction_notes(decisions: Sequence[Decision]) -> list[str]:
    """Returns what predictions are worth; nothing where there are none."""
    bars = memory_bars(decisions)
    notes = [speed_note(decisions), memory_note(bars) if bars else ""]
    return [note for note in notes if note]
