# SPDX-License-Identifier: Apache-2.0
"""Float32, measured against itself: what a rehearsal may differ by without being worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from floatwise.formats import get_format
from floatwise.plan import recipe
from floatwise.rehearse.comparison import SpreadSource
from floatwise.rehearse.first_look import FirstLook, look
from floatwise.rehearse.nonfinite import OperatorSite
from floatwise.rehearse.permuted import PermutedReductions
from floatwise.rehearse.sqnr import sqnr_db
from floatwise.rehearse.training import MakeTraining
from floatwise.rehearse.trial import Trial, rehearse, train

__all__ = ["OTHER_RUNS", "Baseline", "baseline_of", "measure_baseline"]

#: Further float32 runs; with the first one they make three, as in the planner's measurement.
OTHER_RUNS = (1, 2)


@dataclass(frozen=True)
class Baseline:
    """A float32 run and what float32 itself varies by.

    Attributes:
      trial: The run.
      other_losses: Losses of two more float32 runs.
      spread_source: What makes those differ: other seeds, or, where the training seeds itself, sums added up in
        another order.
      gradient_rounding_db: By parameter, the signal-to-noise ratio of the first gradient when its products add up
        their terms in another order: how well float32 itself knows it.
      gradient_batch_db: By parameter, the same ratio when the next batches take the place of the first.
      known: Places where float32 makes infinities or NaN, too.
    """

    trial: Trial
    other_losses: tuple[tuple[float, ...], ...]
    spread_source: SpreadSource
    gradient_rounding_db: Mapping[str, float] = field(repr=False)
    gradient_batch_db: Mapping[str, float] = field(repr=False)
    known: frozenset[OperatorSite] = frozenset()

    @property
    def losses(self) -> tuple[float, ...]:
        """Loss of each step of the run."""
        return self.trial.trained.losses if self.trial.trained is not None else (self.trial.start.loss,)

    @property
    def is_finite(self) -> bool:
        """Whether float32 itself trains with finite numbers."""
        return self.trial.start.is_finite and all(math.isfinite(loss) for loss in self.losses)


def measure_baseline(make_training: MakeTraining, steps: int, *, seed: int = 0) -> Baseline:
    """Trains in float32 three times and measures how well float32 knows its own loss and gradients.

    Args:
      make_training: Makes the training; called six times, or eight where it seeds itself.
      steps: How many steps.
      seed: What the random state is seeded with. Default 0; the other runs take the two seeds after it.
    """
    plan = recipe("fp32")
    trial = rehearse(make_training, plan, steps, seed=seed)
    if trial.trained is None:
        return Baseline(trial, (), "seeds", {}, {})
    source: SpreadSource = "seeds"
    others = [train(make_training, plan, steps, seed + offset).losses for offset in OTHER_RUNS]
    if all(losses == trial.trained.losses for losses in others):
        source = "permuted_reductions"
        others = [
            train(make_training, plan, steps, seed, also=PermutedReductions(offset)).losses for offset in OTHER_RUNS
        ]
    permuted = [look(make_training, plan, seed, also=PermutedReductions(offset)) for offset in OTHER_RUNS]
    return baseline_of(trial, others, source, permuted)


def baseline_of(
    trial: Trial, other_losses: Sequence[tuple[float, ...]], source: SpreadSource, permuted: Sequence[FirstLook]
) -> Baseline:
    """Returns what a float32 run and its variations say.

    Args:
      trial: The run.
      other_losses: Losses of the further runs.
      source: What those differ by.
      permuted: The first batch again, with sums added up in other orders.
    """
    if trial.trained is None:
        return Baseline(trial, (), source, {}, {})
    known = trial.start.nonfinite_sites
    if trial.trained.first_nonfinite is not None:
        known |= {trial.trained.first_nonfinite.site}
    batch = _batch_db(trial.trained.gradients)
    return Baseline(trial, tuple(other_losses), source, _rounding_db(trial.start, permuted), batch, known)


def _rounding_db(start: FirstLook, permuted: Sequence[FirstLook]) -> dict[str, float]:
    """Returns the worst of the permutations, and never better than one rounding of each value."""
    fmt = get_format("float32")
    once = -20 * math.log10(fmt.epsilon / math.sqrt(12))  # uniform rounding error of a value of size 1
    worst: dict[str, float] = {}
    for other in permuted:
        for name, gradient in start.gradients.items():
            ratio = sqnr_db(gradient, other.gradients[name]) if name in other.gradients else None
            if ratio is not None:
                worst[name] = min(ratio, worst.get(name, once))
    return worst


def _batch_db(gradients: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Returns how far the gradients of the next steps are from the first, as the mean of their noise."""
    if len(gradients) < 2:
        return {}
    found: dict[str, float] = {}
    for name, first in gradients[0].items():
        ratios = [sqnr_db(first, later[name]) for later in gradients[1:] if name in later]
        noise = [10 ** (-ratio / 10) for ratio in ratios if ratio is not None]
        if noise and sum(noise):
            found[name] = -10 * math.log10(sum(noise) / len(noise))
    return found
