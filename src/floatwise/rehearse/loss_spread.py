# SPDX-License-Identifier: Apache-2.0
"""How far apart the final losses of float32 runs are that differ by their seeds alone. No framework is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["FINAL_STEPS", "LEAST_SPREAD", "final_loss", "loss_tolerance"]

#: Last steps whose mean is the final loss: one batch's loss alone is mostly the batch.
FINAL_STEPS = 5
#: The least spread, as a share of the loss: convention, the size of float32's own run-to-run noise on GPUs.
LEAST_SPREAD = 0.005
#: Standard deviations that two final losses may differ by: with the ten degrees of freedom of three runs, 1 healthy
#: training in 75 is further off.
_DEVIATIONS = 3.0


def final_loss(losses: Sequence[float]) -> float:
    """Returns the mean of the last steps' losses; NaN when there are none."""
    last = losses[-FINAL_STEPS:]
    return sum(last) / len(last) if last else math.nan


def loss_tolerance(runs: Sequence[Sequence[float]]) -> float:
    """Returns how far a final loss may be from that of the first run.

    The range of a few final losses is small by chance now and then. What the runs differ by at each of the last steps
    is known from more numbers: the difference of two means of five such steps has two fifths of its variance.

    Args:
      runs: Losses of float32 runs, the first being the one to compare with.
    """
    finals = [final_loss(losses) for losses in runs]
    least = LEAST_SPREAD * abs(finals[0])
    if not all(map(math.isfinite, finals)):
        return least
    tails = [losses[-FINAL_STEPS:] for losses in runs]
    steps = [step for step in zip(*tails, strict=False) if all(map(math.isfinite, step))]
    variances = [_variance(step) for step in steps] if len(runs) > 1 else []
    deviation = math.sqrt(2 * sum(variances) / len(variances) / len(variances)) if variances else 0.0
    return max(max(finals) - min(finals), _DEVIATIONS * deviation, least)


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
