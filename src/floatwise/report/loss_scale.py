# SPDX-License-Identifier: Apache-2.0
"""What every loss scale would do to the recorded gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from floatwise.planner.decision import Decision, Island, LossScaleChoice
from floatwise.planner.judge import START_MARGIN_BITS
from floatwise.planner.window import loss_scale_window, underflow_at
from floatwise.probe.recording import Recording
from floatwise.report.numbers import nearest_log2

__all__ = ["TORCH_DEFAULT_LOG2", "ScaleCurve", "ShownScale", "scale_curve", "shown_scale"]

#: torch.amp.GradScaler starts at 65536 (its documentation, `init_scale`).
TORCH_DEFAULT_LOG2 = 16
# Powers of two beside the window that are shown.
_BELOW, _ABOVE = 12, 7


@dataclass(frozen=True)
class ScaleCurve:
    """Gradients that vanish at each scale.

    Attributes:
      scales_log2: Scales, as powers of two.
      flushed: Share of the nonzero gradients that float16 rounds to zero at each.
    """

    scales_log2: tuple[int, ...]
    flushed: tuple[float, ...]


@dataclass(frozen=True)
class ShownScale:
    """The loss scale that figures show.

    Attributes:
      recipe: Whose it is; empty where no recipe has one, and float16 would need it.
      choice: Its window and first value.
      islands: Modules whose gradients float16 does not hold.
    """

    recipe: str
    choice: LossScaleChoice
    islands: tuple[Island, ...]


def shown_scale(decisions: Iterable[Decision], recording: Recording) -> ShownScale | None:
    """Returns the loss scale of the first plan that has one, of a recipe, rehearsed ones first, or what it would be."""
    judged = list(decisions)
    for decision in judged:
        if decision.loss_scale is not None:
            return ShownScale(decision.recipe, decision.loss_scale, decision.islands)
    verdicts = [verdict for decision in judged for verdict in decision.verdicts]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.rehearsal is None):
        if verdict.loss_scale is not None:
            return ShownScale(verdict.recipe, verdict.loss_scale, verdict.islands)
    window = loss_scale_window(recording)
    if window is None or window.hi < window.lo:
        return None
    start = max(window.lo, window.hi - START_MARGIN_BITS)
    return ShownScale("", LossScaleChoice((window.lo, window.hi), 2.0**start, window.largest), ())


def scale_curve(recording: Recording, shown: ShownScale) -> ScaleCurve | None:
    """Returns the curve around a window; None where no gradient was recorded."""
    choice, estimate = shown.choice, loss_scale_window(recording, shown.islands)
    if estimate is None or not estimate.outputs:
        return None
    low, high = choice.window_log2
    start = nearest_log2(choice.initial)
    first = min(low, high, start, TORCH_DEFAULT_LOG2) - _BELOW
    scales = range(max(first, -24), max(low, high, start, TORCH_DEFAULT_LOG2) + _ABOVE + 1)
    return ScaleCurve(tuple(scales), tuple(underflow_at(estimate.outputs.values(), scale) for scale in scales))
