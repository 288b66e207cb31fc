# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import random

import pytest

from floatwise.rehearse.loss_spread import final_loss, loss_tolerance


@pytest.mark.parametrize(
    ("runs", "tolerance"),
    [
        ([[1.0] * 9], 0.005),  # one run alone: the convention
        ([[1.0] * 9, [1.0] * 9], 0.005),
        ([[1.0] * 5, [1.2] * 5, [0.9] * 5], 0.3),  # the range of the finals
        # The finals agree by chance; the steps say how noisy they are: three deviations of a difference of means.
        ([[1.1, 0.9, 1.1, 0.9, 1.0], [0.9, 1.1, 0.9, 1.1, 1.0]], pytest.approx(3 * math.sqrt(2 * 0.016 / 5))),
        ([[1.0] * 5, [math.inf] * 5], 0.005),
        ([[math.nan] * 5], pytest.approx(math.nan, nan_ok=True)),
    ],
)
def test_tolerance(runs: list[list[float]], tolerance: float) -> None:
    assert loss_tolerance(runs) == pytest.approx(tolerance, nan_ok=True)


def test_a_healthy_noisy_training_is_seldom_outside() -> None:
    """Three seeds and a fourth run with the same noise: their range alone would refuse one in six."""
    numbers = random.Random(0)
    outside = by_range = 0
    for _ in range(400):
        runs = [[2.0 + numbers.gauss(0, 0.3) for _ in range(10)] for _ in range(4)]
        distance = abs(final_loss(runs[3]) - final_loss(runs[0]))
        finals = [final_loss(run) for run in runs[:3]]
        outside += distance > loss_tolerance(runs[:3])
        by_range += distance > max(finals) - min(finals)
    assert outside / 400 < 0.03 < 0.1 < by_range / 400
