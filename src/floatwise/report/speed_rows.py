# SPDX-License-Identifier: Apache-2.0
"""Steps per second against float32's under each recipe or on each target: predicted, measured, or both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from floatwise.language import Text
from floatwise.planner.decision import Decision, Measured, Verdict
from floatwise.rehearse.roofline import SpeedPrediction
from floatwise.report.plain import plain

__all__ = ["SpeedRow", "measured_here", "predicted_speed", "speed_note", "speed_rows"]

_NOTE = Text(
    "Predicted from the recorded operators and the device's peak rates (a roofline); the range is from little of "
    "the peaks to all of them. Where it was tested, on a CPU, the ratio was up to {error} % off; on GPUs the error is "
    "not established.",
    "根据录制到的算子与设备峰值速率预测（屋顶线模型）；区间对应仅达到小部分峰值至完全达到峰值。在测试过的 CPU 上，"
    "比值误差不超过 {error} %；在 GPU 上误差尚未确定。",
)


@dataclass(frozen=True)
class SpeedRow:
    """One ratio or two, each as (low, ratio, high).

    Attributes:
      recipe: What runs.
      target: Where; empty where the page is about one target.
      predicted: None where the device's rates are not known.
      measured: None where it was not run.
    """

    recipe: str
    target: str
    predicted: tuple[float, float, float] | None
    measured: tuple[float, float, float] | None

    @property
    def name(self) -> str:
        """Both in one line."""
        return f"{self.target} · {self.recipe}" if self.target else self.recipe


def speed_rows(decisions: Sequence[Decision]) -> list[SpeedRow]:
    """Returns one target's recipes, or the chosen recipe of each of several targets."""
    if len(decisions) == 1:
        return [row for verdict in decisions[0].verdicts for row in _row(decisions[0], verdict, "")]
    chosen = [(d, verdict) for d in decisions for verdict in d.verdicts if verdict.recipe == d.recipe]
    return [row for decision, verdict in chosen for row in _row(decision, verdict, plain(decision.target_name))]


def _row(decision: Decision, verdict: Verdict, target: str) -> Iterator[SpeedRow]:
    speed, measured = predicted_speed(verdict), measured_here(decision, verdict)
    if verdict.recipe == "fp32" or (speed is None and measured is None):
        return
    predicted = (speed.low, speed.ratio, speed.high) if speed is not None else None
    seen = None
    if measured is not None:
        low, high = measured.speed_spread
        seen = (low, measured.speed_ratio, high)
    yield SpeedRow(plain(verdict.recipe), target, predicted, seen)


def predicted_speed(verdict: Verdict) -> SpeedPrediction | None:
    """Returns the prediction of a recipe's speed, where there is one."""
    return verdict.predicted.speed if verdict.predicted is not None else None


def measured_here(decision: Decision, verdict: Verdict) -> Measured | None:
    """Returns what was measured of a recipe on the target itself."""
    measured = decision.measured
    return measured if decision.here and measured is not None and measured.recipe == verdict.recipe else None


def speed_note(decisions: Iterable[Decision]) -> str:
    """Returns how speed was predicted and how far off that is known to be; empty where it was not."""
    found = [predicted_speed(verdict) for decision in decisions for verdict in decision.verdicts]
    errors = [speed.known_error for speed in found if speed is not None]
    return _NOTE.format(error=f"{100 * max(errors):.0f}") if errors else ""
